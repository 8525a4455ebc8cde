// The walker of LMDB environments.
#include "index/walk_lmdb.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "binding/walk_source.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

template <typename T>
OwnedArray<T> make_array(lmdb::Column<T>&& column) {
  T* data = column.data.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return {data, {column.size}, owner};
}

WalkResult walk_environment(int file, const std::optional<ReadFunction>& read, std::uint64_t size,
                           const std::optional<nb::bytes>& database,
                           const std::vector<nb::bytes>& exclude, bool file_order, bool datum,
                           const std::optional<bool>& verify, unsigned threads) {
  lmdb::Options options;
  if (database) options.database.emplace(database->c_str(), database->size());
  for (const auto& key : exclude) options.exclude.emplace_back(key.c_str(), key.size());
  options.file_order = file_order;
  options.datum = datum;
  if (verify) options.verify = *verify ? lmdb::Verify::on : lmdb::Verify::off;
  options.threads = threads;
  auto result = walk_file(file, read, size, [&](Source& source, bool local) {
    options.concurrent = local;
    return lmdb::walk(source, options);
  });
  nb::dict columns;
  if (!result.parse_error) {
    columns["keys"] = make_array(std::move(result.keys));
    columns["ends"] = make_array(std::move(result.key_ends));
    columns["offset"] = make_array(std::move(result.offset));
    columns["length"] = make_array(std::move(result.length));
    if (datum) columns["label"] = make_array(std::move(result.label));
    columns["labelled"] = result.labelled;
    columns["shape"] = nb::make_tuple(result.shape[0], result.shape[1], result.shape[2]);
    columns["integer_keys"] = result.integer_keys;
    columns["entries"] = result.entries;
    columns["psize"] = result.page_bytes;
    columns["version"] = result.version;
    columns["txnid"] = result.txnid;
  }
  return make_result(columns, result.parse_error);
}

}  // namespace

void bind_walk_lmdb(nb::module_& m) {
  m.def("walk_lmdb", &walk_environment, nb::arg("file"), nb::arg("read").none(), nb::arg("size"),
        nb::kw_only(),
        nb::arg("database").none() = nb::none(), nb::arg("exclude") = std::vector<nb::bytes>{},
        nb::arg("file_order") = false, nb::arg("datum") = false,
        nb::arg("verify").none() = nb::none(), nb::arg("threads") = 0,
        "Find the records of an LMDB environment: (columns, None or (offset, message)).");
}

}  // namespace penstock::binding

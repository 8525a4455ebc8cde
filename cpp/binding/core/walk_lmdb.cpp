#include "index/walk_lmdb.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "binding/core/walk_source.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

template <typename T>
nb::object array(lmdb::Column<T>&& column) {
  T* data = column.data.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {column.size}, owner));
}

nb::tuple walk_environment(int fd, const nb::object& read, std::uint64_t size,
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
  auto found = walked(fd, read, size, [&](Source& source, bool local) {
    options.concurrent = local;
    return lmdb::walk(source, options);
  });
  nb::dict columns;
  if (!found.flaw) {
    columns["keys"] = array(std::move(found.keys));
    columns["ends"] = array(std::move(found.key_ends));
    columns["offset"] = array(std::move(found.offset));
    columns["length"] = array(std::move(found.length));
    if (datum) columns["label"] = array(std::move(found.label));
    columns["labelled"] = found.labelled;
    columns["shape"] = nb::make_tuple(found.shape[0], found.shape[1], found.shape[2]);
    columns["integer_keys"] = found.integer_keys;
    columns["entries"] = found.entries;
    columns["psize"] = found.page_bytes;
    columns["version"] = found.version;
    columns["txnid"] = found.txnid;
  }
  return nb::make_tuple(columns, flaw_of(found.flaw));
}

}  // namespace

void bind_walk_lmdb(nb::module_& m) {
  m.def("walk_lmdb", &walk_environment, nb::arg("fd"), nb::arg("read").none(), nb::arg("size"), nb::kw_only(),
        nb::arg("database").none() = nb::none(), nb::arg("exclude") = std::vector<nb::bytes>{},
        nb::arg("file_order") = false, nb::arg("datum") = false,
        nb::arg("verify").none() = nb::none(), nb::arg("threads") = 0,
        "The records of an LMDB environment: (columns, None or (offset, what is wrong)).");
}

}  // namespace penstock::binding

#include "walk_lmdb.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "file_source.hpp"
#include "gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

constexpr unsigned reads_between_signals = 64;

// A file that several threads read without the GIL. The one that called takes it now and then, so
// that Ctrl-C is heard.
struct SharedFile final : FileSource {
  using FileSource::FileSource;

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    if (std::this_thread::get_id() == caller_ && ++reads_ % reads_between_signals == 0) {
      nb::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) {
        raised = std::make_exception_ptr(nb::python_error());
        return -EINTR;
      }
    }
    return FileSource::read(offset, out);
  }

  std::exception_ptr raised;

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  unsigned reads_ = 0;
};

// Reads by a Python function, always with the GIL. Its exception is kept for the caller.
class Fetching final : public Source {
 public:
  Fetching(nb::callable fetch, std::uint64_t bytes) : Source(bytes), fetch_(std::move(fetch)) {}

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    try {
      const nb::object found = fetch_(offset, out.size());
      char* data = nullptr;
      Py_ssize_t length = 0;
      if (PyBytes_AsStringAndSize(found.ptr(), &data, &length) != 0) throw nb::python_error();
      const std::size_t got = std::min(static_cast<std::size_t>(length), out.size());
      std::memcpy(out.data(), data, got);
      return static_cast<std::int64_t>(got);
    } catch (...) {
      raised = std::current_exception();
      return -EIO;
    }
  }

  std::exception_ptr raised;

 private:
  nb::callable fetch_;
};

template <typename T>
nb::object array(lmdb::Column<T>&& column) {
  T* data = column.data.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {column.size}, owner));
}

nb::tuple walked(int fd, const nb::object& read, std::uint64_t size,
                 const std::optional<nb::bytes>& database, const std::vector<nb::bytes>& exclude,
                 bool file_order, bool datum, const std::optional<bool>& verify, unsigned threads) {
  lmdb::Options options;
  if (database) options.database.emplace(database->c_str(), database->size());
  for (const auto& key : exclude) options.exclude.emplace_back(key.c_str(), key.size());
  options.file_order = file_order;
  options.datum = datum;
  if (verify) options.verify = *verify ? lmdb::Verify::on : lmdb::Verify::off;
  options.threads = threads;
  options.concurrent = fd >= 0;
  lmdb::Walk found;
  if (fd >= 0) {
    SharedFile source(fd, size);
    {
      const WithoutGil without;
      found = lmdb::walk(source, options);
    }
    if (source.raised) std::rethrow_exception(source.raised);
  } else {
    Fetching source(nb::cast<nb::callable>(read), size);
    found = lmdb::walk(source, options);
    if (source.raised) std::rethrow_exception(source.raised);
  }
  if (found.error != 0) {
    errno = found.error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  nb::dict columns;
  nb::object flaw = nb::none();
  if (found.flaw) {
    flaw = nb::make_tuple(found.flaw->offset, found.flaw->message);
  } else {
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
  return nb::make_tuple(columns, flaw);
}

}  // namespace

void walk_lmdb(nb::module_& m) {
  m.def("walk_lmdb", &walked, nb::arg("fd"), nb::arg("read").none(), nb::arg("size"), nb::kw_only(),
        nb::arg("database").none() = nb::none(), nb::arg("exclude") = std::vector<nb::bytes>{},
        nb::arg("file_order") = false, nb::arg("datum") = false,
        nb::arg("verify").none() = nb::none(), nb::arg("threads") = 0,
        "The records of an LMDB environment: (columns, None or (offset, what is wrong)).");
}

}  // namespace penstock::binding

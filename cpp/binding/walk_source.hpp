// Sources that the walkers of all containers read, and their errors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"
#include "ground/parse_error.hpp"
#include "index/file_source.hpp"

namespace penstock::binding {

namespace nb = nanobind;

// read(offset, length) -> bytes, which are fewer only at the end of the file.
using ReadFunction = nb::typed<nb::callable, nb::bytes(std::uint64_t, std::uint64_t)>;
// The columns by name, and (offset, message) if the file is damaged.
using WalkResult = Tuple<nb::typed<nb::dict, nb::str, nb::any>,
                         std::optional<Tuple<std::uint64_t, nb::str>>>;

inline constexpr unsigned reads_between_signals = 64;

// A file that is walked without the GIL, perhaps by several threads. The calling thread takes the
// GIL now and then to handle signals such as Ctrl-C.
struct InterruptibleFile : FileSource {
  using FileSource::FileSource;

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    if (std::this_thread::get_id() == caller_ && ++reads_ % reads_between_signals == 0) {
      nb::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) {
        exception = std::make_exception_ptr(nb::python_error());
        return -EINTR;
      }
    }
    return FileSource::read(offset, out);
  }

  std::exception_ptr exception;

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  unsigned reads_ = 0;
};

// A file that a Python function reads.
struct PythonSource : Source {
  PythonSource(ReadFunction function, std::uint64_t bytes)
      : Source(bytes), function_(std::move(function)) {}

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    nb::gil_scoped_acquire gil;
    try {
      const nb::bytes data = nb::cast<nb::bytes>(function_(offset, out.size()));
      const std::size_t n = std::min(data.size(), out.size());
      std::memcpy(out.data(), data.c_str(), n);
      return static_cast<std::int64_t>(n);
    } catch (...) {
      exception = std::current_exception();
      return -EIO;
    }
  }

  std::exception_ptr exception;

 private:
  ReadFunction function_;
};

// Names in files need not be UTF-8.
inline nb::object decode_text(const std::string& message) {
  return nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()),
                                        "replace"));
}

inline WalkResult make_result(const nb::dict& columns, const std::optional<ParseError>& error) {
  if (!error) return nb::make_tuple(columns, nb::none());
  return nb::make_tuple(columns, nb::make_tuple(error->offset, decode_text(error->message)));
}

// Walk without the GIL; raise what Python raised meanwhile, or OSError if reading failed.
template <typename Read, typename Walk>
auto walk_source(Read& source, const Walk& walk) {
  auto result = [&] {
    const WithoutGil released;
    return walk(source);
  }();
  if (source.exception) std::rethrow_exception(source.exception);
  if (result.read_error != 0) {
    errno = result.read_error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  return result;
}

// walk(source, local), for a descriptor, whose file is read from `start` on, or for a Python function
// if `file` is negative.
template <typename Walk>
auto walk_file(int file, const std::optional<ReadFunction>& read, std::uint64_t size,
               const Walk& walk, std::uint64_t start = 0) {
  if (file >= 0) {
    InterruptibleFile source(file, size, start);
    return walk_source(source, [&](Source& s) { return walk(s, true); });
  }
  if (!read) throw nb::type_error("file is no descriptor and read is None: give one of them");
  PythonSource source(*read, size);
  return walk_source(source, [&](Source& s) { return walk(s, false); });
}

}  // namespace penstock::binding

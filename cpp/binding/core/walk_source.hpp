// What the walkers of all containers share: files and functions to read from, and how they end.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "index/file_source.hpp"
#include "ground/parse_error.hpp"
#include "binding/gil.hpp"

namespace penstock::binding {

namespace nb = nanobind;

inline constexpr unsigned reads_between_signals = 64;

// A file that is walked without the GIL, by several threads perhaps. The one that called takes it now
// and then, so that Ctrl-C is heard.
struct HeardFile : FileSource {
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

// A file that a function of Python reads.
struct CalledSource : Source {
  CalledSource(nb::object function, std::uint64_t bytes)
      : Source(bytes), function_(std::move(function)) {}

  std::int64_t read(std::uint64_t offset, std::span<std::byte> out) override {
    nb::gil_scoped_acquire gil;
    try {
      const nb::bytes data = nb::cast<nb::bytes>(function_(offset, out.size()));
      const std::size_t n = std::min(data.size(), out.size());
      std::memcpy(out.data(), data.c_str(), n);
      return static_cast<std::int64_t>(n);
    } catch (...) {
      raised = std::current_exception();
      return -EIO;
    }
  }

  std::exception_ptr raised;

 private:
  nb::object function_;
};

// Names in files may be no UTF-8.
inline nb::object text(const std::string& message) {
  return nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()),
                                        "replace"));
}

inline nb::object flaw_of(const std::optional<Flaw>& flaw) {
  if (!flaw) return nb::none();
  return nb::make_tuple(flaw->offset, text(flaw->message));
}

// Walks without the GIL; raises what Python raised meanwhile, or OSError where reading failed.
template <typename Read, typename Walk>
auto walked(Read& source, const Walk& walk) {
  auto found = [&] {
    const WithoutGil released;
    return walk(source);
  }();
  if (source.raised) std::rethrow_exception(source.raised);
  if (found.error != 0) {
    errno = found.error;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  return found;
}

// walk(source, local): of a descriptor, or of what a function of Python reads.
template <typename Walk>
auto walked(int file, const nb::object& read, std::uint64_t size, const Walk& walk) {
  if (file >= 0) {
    HeardFile source(file, size);
    return walked(source, [&](Source& s) { return walk(s, true); });
  }
  CalledSource source(read, size);
  return walked(source, [&](Source& s) { return walk(s, false); });
}

}  // namespace penstock::binding

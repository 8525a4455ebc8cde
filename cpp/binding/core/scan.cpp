#include "index/scan.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "binding/columns.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

nb::tuple scan_folder(const nb::bytes& root, const std::vector<nb::bytes>& extensions,
                      unsigned threads, const nb::object& tick) {
  ScanOptions options;
  options.threads = threads;
  for (const auto& e : extensions) options.extensions.emplace_back(e.c_str(), e.size());
  const std::string path(root.c_str(), root.size());
  const auto call = [&tick](std::uint64_t files) {
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!tick.is_none()) tick(files);
    return true;
  };
  Listing found;
  {
    nb::gil_scoped_release release;
    found = scan(path, options, call);
  }
  nb::list failures;
  for (const auto& f : found.failures)
    failures.append(nb::make_tuple(f.error, nb::bytes(f.path.data(), f.path.size())));
  return nb::make_tuple(
      array<std::uint8_t>(std::move(found.files.text)),
      array<std::int64_t>(std::move(found.files.ends)), array<std::int64_t>(std::move(found.size)),
      array<std::int64_t>(std::move(found.mtime_ns)), array<std::int32_t>(std::move(found.folder)),
      array<std::uint8_t>(std::move(found.folders.text)),
      array<std::int64_t>(std::move(found.folders.ends)),
      array<std::int64_t>(std::move(found.folder_mtime_ns)), failures);
}

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple stat_files(const nb::bytes& root, const Bytes& names, const Ints& ends,
                     unsigned threads) {
  const std::string path(root.c_str(), root.size());
  Stats found;
  {
    nb::gil_scoped_release release;
    found = stat(path, {reinterpret_cast<const char*>(names.data()), names.size()},
                 {ends.data(), ends.size()}, threads);
  }
  return nb::make_tuple(array<std::int64_t>(std::move(found.size)),
                        array<std::int64_t>(std::move(found.mtime_ns)),
                        array<std::int32_t>(std::move(found.error)));
}

}  // namespace

void bind_scan(nb::module_& m) {
  m.def("scan", &scan_folder, nb::arg("root"), nb::arg("extensions"), nb::arg("threads"),
        nb::arg("tick").none(),
        "Files below a folder: (names, ends, size, mtime_ns, folder, folder_names, folder_ends, "
        "folder_mtime_ns, failures).");
  m.def("stat", &stat_files, nb::arg("root"), nb::arg("names"), nb::arg("ends"),
        nb::arg("threads"), "Sizes and times of named files: (size, mtime_ns, errno).");
}

}  // namespace penstock::binding

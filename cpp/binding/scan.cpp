// Files below a folder.
#include "index/scan.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

using Tick = nb::typed<nb::callable, nb::object(std::uint64_t)>;
using ListingColumns =
    Tuple<OwnedArray<std::uint8_t>, OwnedArray<std::int64_t>, OwnedArray<std::int64_t>,
          OwnedArray<std::int64_t>, OwnedArray<std::int32_t>, OwnedArray<std::uint8_t>,
          OwnedArray<std::int64_t>, OwnedArray<std::int64_t>, List<Tuple<int, nb::bytes>>>;
using StatColumns =
    Tuple<OwnedArray<std::int64_t>, OwnedArray<std::int64_t>, OwnedArray<std::int32_t>>;

ListingColumns scan(const nb::bytes& root, const std::vector<nb::bytes>& extensions,
                    unsigned threads, const std::optional<Tick>& tick) {
  ScanOptions options;
  options.threads = threads;
  for (const auto& e : extensions) options.extensions.emplace_back(e.c_str(), e.size());
  const std::string path(root.c_str(), root.size());
  const auto call = [&tick](std::uint64_t files) {
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (tick) (*tick)(files);
    return true;
  };
  Listing listing;
  {
    const WithoutGil released;
    listing = scan_folder(path, options, call);
  }
  nb::list failures;
  for (const auto& f : listing.failures)
    failures.append(nb::make_tuple(f.error, nb::bytes(f.path.data(), f.path.size())));
  return nb::make_tuple(make_array<std::uint8_t>(std::move(listing.files.text)),
                        make_array<std::int64_t>(std::move(listing.files.ends)),
                        make_array<std::int64_t>(std::move(listing.size)),
                        make_array<std::int64_t>(std::move(listing.mtime_ns)),
                        make_array<std::int32_t>(std::move(listing.folder)),
                        make_array<std::uint8_t>(std::move(listing.folders.text)),
                        make_array<std::int64_t>(std::move(listing.folders.ends)),
                        make_array<std::int64_t>(std::move(listing.folder_mtime_ns)), failures);
}

StatColumns stat(const nb::bytes& root, const Column<std::uint8_t>& names, const Ints& ends,
                 unsigned threads) {
  const std::string path(root.c_str(), root.size());
  Stats stats;
  {
    const WithoutGil released;
    stats = stat_files(path, view_text(names), view(ends), threads);
  }
  return nb::make_tuple(make_array<std::int64_t>(std::move(stats.size)),
                        make_array<std::int64_t>(std::move(stats.mtime_ns)),
                        make_array<std::int32_t>(std::move(stats.error)));
}

}  // namespace

void bind_scan(nb::module_& m) {
  m.def("scan_folder", &scan, nb::arg("root"), nb::arg("extensions"), nb::arg("threads"),
        nb::arg("tick").none(),
        "List the files below a folder.\n\n"
        "Returns (names, ends, size, mtime_ns, folder, folder_names, folder_ends, folder_mtime_ns,\n"
        "failures); a failure is (errno, path). `tick` is called with the number of files so far.");
  m.def("stat_files", &stat, nb::arg("root"), nb::arg("names"), nb::arg("ends"),
        nb::arg("threads"), "Read sizes and times of named files: (size, mtime_ns, errno).");
}

}  // namespace penstock::binding

// Memory collected from many places, and written behind everything else: conversion only.
#include "flush.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "gather.hpp"
#include "gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

template <class T>
using Flat = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> all(const Flat<T>& column) {
  return {column.data(), column.shape(0)};
}

}  // namespace

void flush(nb::module_& m) {
  nb::class_<Flush>(m, "Flush")
      .def(nb::init<double>(), "bytes_per_s"_a)
      .def(
          "run",
          [](Flush& self, int file, const Flat<const std::uint8_t>& data) {
            const auto bytes = std::as_bytes(all(data));
            const WithoutGil released;
            return self.run(file, bytes);
          },
          "file"_a, "data"_a.noconvert())
      .def("throttle", &Flush::throttle, "bytes_per_s"_a)
      .def("stop", &Flush::stop)
      .def_prop_ro("written_bytes", &Flush::written_bytes);
  m.def(
      "collect",
      [](const Flat<const std::uint64_t>& from, const Flat<const std::int64_t>& lengths,
         std::size_t alignment, const Flat<std::uint8_t>& out, unsigned threads,
         const Flat<std::uint32_t>& checksums) {
        const auto bytes = std::as_writable_bytes(all(out));
        const auto sources = all(from);
        const auto sizes = all(lengths);
        const auto sums = all(checksums);
        const WithoutGil released;
        collect(sources, sizes, alignment, bytes, threads, sums);
      },
      "from"_a.noconvert(), "lengths"_a.noconvert(), "alignment"_a, "out"_a.noconvert(),
      "threads"_a, "checksums"_a.noconvert());
}

}  // namespace penstock::binding

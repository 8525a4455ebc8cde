// Memory collected from many places: conversion only.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "ground/gather.hpp"
#include "binding/gil.hpp"

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

void bind_collect(nb::module_& m) {
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
        penstock::collect(sources, sizes, alignment, bytes, threads, sums);
      },
      "from"_a.noconvert(), "lengths"_a.noconvert(), "alignment"_a, "out"_a.noconvert(),
      "threads"_a, "checksums"_a.noconvert());
}

}  // namespace penstock::binding

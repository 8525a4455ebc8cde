// Columns between numpy and the core.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

namespace penstock::binding {

namespace nb = nanobind;

// A column of numpy that is read, and one that is written to.
template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using WritableColumn = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = Column<std::int64_t>;

// A column of the core that numpy owns from now on.
template <class T>
using OwnedArray = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class... Ts>
using Tuple = nb::typed<nb::tuple, Ts...>;
template <class T>
using List = nb::typed<nb::list, T>;

template <class T>
std::span<T> view(const nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& column) {
  return {column.data(), column.shape(0)};
}

inline std::span<const std::byte> view_bytes(const Column<std::uint8_t>& column) {
  return std::as_bytes(view(column));
}
inline std::span<std::byte> view_bytes(const WritableColumn<std::uint8_t>& column) {
  return std::as_writable_bytes(view(column));
}
inline std::span<const char> view_text(const Column<std::uint8_t>& column) {
  return {reinterpret_cast<const char*>(column.data()), column.shape(0)};
}

// Hand a vector or string to numpy without a copy.
template <typename T, typename Container>
OwnedArray<T> make_array(Container&& values) {
  using Owned = std::remove_reference_t<Container>;
  auto* owned = new Owned(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Owned*>(p); });
  return {reinterpret_cast<T*>(owned->data()), {owned->size()}, owner};
}

}  // namespace penstock::binding

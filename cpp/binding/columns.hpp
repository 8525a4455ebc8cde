// Columns on their way to numpy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <type_traits>
#include <utility>

namespace penstock::binding {

namespace nb = nanobind;

// Hands a vector or string to numpy without a copy.
template <typename T, typename Container>
nb::object array(Container&& values) {
  using Owned = std::remove_reference_t<Container>;
  auto* owned = new Owned(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Owned*>(p); });
  auto* data = reinterpret_cast<T*>(owned->data());
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {owned->size()}, owner));
}

}  // namespace penstock::binding

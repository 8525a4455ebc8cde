#include "order/order.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

namespace nb = nanobind;

namespace penstock::binding {
namespace {

using In = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const Level& level_named(std::string_view name) {
  const auto all = levels();
  if (name.empty()) return all.back();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Level& level) { return level.name == name; });
  if (found == all.end()) throw nb::value_error("this processor has no such level");
  return *found;
}

// Binds a member function from values to values, of a Permutation or of Groups.
template <auto map, class Mapping>
std::size_t mapped(const Mapping& mapping, const In& in, const Out& out) {
  if (in.size() != out.size()) throw nb::value_error("the arrays differ in size");
  const nb::gil_scoped_release release;
  return (mapping.*map)({in.data(), in.size()}, {out.data(), out.size()});
}

std::size_t run(const Permutation& permutation, std::uint64_t start, const Out& out) {
  const nb::gil_scoped_release release;
  return permutation.run(start, {out.data(), out.size()});
}

}  // namespace

void bind_order(nb::module_& m) {
  using namespace nb::literals;

  nb::class_<Permutation>(m, "Permutation", "A permutation of [0, count), drawn from a state.")
      .def(
          "__init__",
          [](Permutation* self, std::uint64_t count, std::uint64_t state, bool cipher,
             std::string_view level) {
            new (self) Permutation(count, state, cipher ? Small::cipher : Small::table,
                                   level_named(level));
          },
          "count"_a, "state"_a, "cipher"_a = false, "level"_a = "")
      .def("forward", mapped<&Permutation::forward, Permutation>, "positions"_a.noconvert(),
           "samples"_a.noconvert(),
           "Position -> sample; returns the index of the first position outside, or the size.")
      .def("inverse", mapped<&Permutation::inverse, Permutation>, "samples"_a.noconvert(),
           "positions"_a.noconvert(),
           "Sample -> position; returns the index of the first sample outside, or the size.")
      .def("run", run, "start"_a, "samples"_a.noconvert(),
           "The samples at positions start, start + 1, ...; returns as forward does.");

  nb::class_<Groups>(m, "Groups", "[0, count) in groups of span, each permuted by its own key.")
      .def(
          "__init__",
          [](Groups* self, std::uint64_t count, std::uint64_t span, std::uint64_t state,
             std::string_view level) {
            new (self) Groups(count, span, state, level_named(level));
          },
          "count"_a, "span"_a, "state"_a, "level"_a = "")
      .def("forward", mapped<&Groups::forward, Groups>, "positions"_a.noconvert(),
           "samples"_a.noconvert(), "As Permutation.forward.")
      .def("inverse", mapped<&Groups::inverse, Groups>, "samples"_a.noconvert(),
           "positions"_a.noconvert(), "As Permutation.inverse.");

  m.def(
      "order_levels",
      [] {
        std::vector<std::string_view> names;
        for (const Level& level : levels()) names.push_back(level.name);
        return names;
      },
      "The instruction sets that this processor runs, the fastest last.");
}

}  // namespace penstock::binding

// The order of samples.
#include "order/order.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <vector>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

using In = Column<std::uint64_t>;
using Out = WritableColumn<std::uint64_t>;

const Level& find_level(std::string_view name) {
  const auto all = levels();
  if (name.empty()) return all.back();
  const auto level =
      std::find_if(all.begin(), all.end(), [&](const Level& each) { return each.name == name; });
  if (level == all.end()) throw nb::value_error("this processor has no such level");
  return *level;
}

// Bind a member function from values to values, of a Permutation or of Groups.
template <auto map, class Mapping>
std::size_t map_values(const Mapping& mapping, const In& in, const Out& out) {
  if (in.size() != out.size()) throw nb::value_error("the arrays differ in size");
  const WithoutGil released;
  return (mapping.*map)(view(in), view(out));
}

std::size_t run(const Permutation& permutation, std::uint64_t start, const Out& out) {
  const WithoutGil released;
  return permutation.run(start, view(out));
}

constexpr auto forward_doc =
    "Write the sample at each position to `samples`.\n\n"
    "Returns the index of the first position outside [0, count), or the size if there is none.";
constexpr auto inverse_doc =
    "Write the position of each sample to `positions`.\n\n"
    "Returns the index of the first sample outside [0, count), or the size if there is none.";

}  // namespace

void bind_order(nb::module_& m) {
  using namespace nb::literals;

  nb::class_<Permutation>(m, "Permutation",
                          "A permutation of [0, count), drawn from a 64-bit state.\n\n"
                          "cipher: use the cipher for small counts too, in place of a table.\n"
                          "level:  instruction set, see `list_order_levels`; the fastest if empty.")
      .def(
          "__init__",
          [](Permutation* self, std::uint64_t count, std::uint64_t state, bool cipher,
             std::string_view level) {
            new (self) Permutation(count, state, cipher ? Small::cipher : Small::table,
                                   find_level(level));
          },
          "count"_a, "state"_a, "cipher"_a = false, "level"_a = "")
      .def("forward", map_values<&Permutation::forward, Permutation>, "positions"_a.noconvert(),
           "samples"_a.noconvert(), forward_doc)
      .def("inverse", map_values<&Permutation::inverse, Permutation>, "samples"_a.noconvert(),
           "positions"_a.noconvert(), inverse_doc)
      .def("run", run, "start"_a, "samples"_a.noconvert(),
           "Write the samples at positions start, start + 1, ... to `samples`; returns as "
           "`forward` does.");

  nb::class_<Groups>(m, "Groups",
                     "A permutation of [0, count) in groups of `span`, each with a key of its own.")
      .def(
          "__init__",
          [](Groups* self, std::uint64_t count, std::uint64_t span, std::uint64_t state,
             std::string_view level) {
            new (self) Groups(count, span, state, find_level(level));
          },
          "count"_a, "span"_a, "state"_a, "level"_a = "")
      .def("forward", map_values<&Groups::forward, Groups>, "positions"_a.noconvert(),
           "samples"_a.noconvert(), forward_doc)
      .def("inverse", map_values<&Groups::inverse, Groups>, "samples"_a.noconvert(),
           "positions"_a.noconvert(), inverse_doc);

  m.def(
      "list_order_levels",
      [] {
        std::vector<std::string_view> names;
        for (const Level& level : levels()) names.push_back(level.name);
        return names;
      },
      "Names of the instruction sets that this processor runs, the fastest last.");
}

}  // namespace penstock::binding

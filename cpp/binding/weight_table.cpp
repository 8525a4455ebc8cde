// Weights of samples, and the samples that evenly spaced points fall on.
#include "order/weight_table.hpp"

#include <nanobind/nanobind.h>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

using Words = Column<std::uint64_t>;
using Halves = Column<std::uint32_t>;
using Out = WritableColumn<std::uint64_t>;

// A table, and the arrays that hold it.
struct BoundWeightTable {
  BoundWeightTable(Halves weights_, Words bases_)
      : weights(std::move(weights_)),
        bases(std::move(bases_)),
        table(view(weights), view(bases)) {}

  Halves weights;
  Words bases;
  WeightTable table;
};

std::size_t pick(const BoundWeightTable& bound, const Words& numbers, const Out& samples,
                 std::uint64_t picks, std::uint64_t offset) {
  if (numbers.size() != samples.size()) throw nb::value_error("the arrays differ in size");
  if (picks == 0 || offset >= bound.table.total())
    throw nb::value_error("there are no picks, or the offset is not below the sum of the weights");
  const WithoutGil released;
  return bound.table.pick(view(numbers), view(samples), picks, offset);
}

}  // namespace

void bind_weight_table(nb::module_& m) {
  using namespace nb::literals;

  nb::class_<BoundWeightTable>(m, "WeightTable",
                               "Weights of samples, with their sums before each block of 32.")
      .def(nb::init<Halves, Words>(), "weights"_a.noconvert(), "bases"_a.noconvert())
      .def_prop_ro(
          "total", [](const BoundWeightTable& bound) { return bound.table.total(); },
          "Sum of all weights.")
      .def("pick", pick, "numbers"_a.noconvert(), "samples"_a.noconvert(), "picks"_a, "offset"_a,
           "Write the sample of each pick: the one that the point (number * total + offset) //\n"
           "picks falls on.\n\n"
           "Returns the index of the first number outside [0, picks), or the size.");
}

}  // namespace penstock::binding

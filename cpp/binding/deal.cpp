// Rows of steps dealt to ranks by cost.
#include "order/deal.hpp"

#include <nanobind/nanobind.h>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

void deal(const Column<std::uint16_t>& costs, const Ints& turns, std::size_t rows,
          std::size_t ranks, bool in_stripes, const WritableColumn<std::int64_t>& dealt) {
  const WithoutGil released;
  deal_rows(view(costs), view(turns), rows, ranks, in_stripes ? Dealing::stripes : Dealing::sums,
            view(dealt));
}

}  // namespace

void bind_deal(nb::module_& m) {
  using namespace nb::literals;
  m.def("deal_rows", &deal, "costs"_a.noconvert(), "turns"_a.noconvert(), "rows"_a, "ranks"_a,
        "in_stripes"_a, "dealt"_a.noconvert(),
        "Deal the rows of steps to ranks by cost.\n\n"
        "in_stripes: every rank gets one of each `ranks` neighbours in cost.\n"
        "Writes, step by step, the first row of each rank, the second of each, ... to `dealt`.");
}

}  // namespace penstock::binding

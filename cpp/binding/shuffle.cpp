// Rows of an array in the order of a permutation.
#include "order/shuffle.hpp"

#include <nanobind/nanobind.h>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

void shuffle(const Permutation& permutation, const Column<std::uint8_t>& array,
             const WritableColumn<std::uint8_t>& out, std::size_t row_bytes, unsigned threads) {
  const WithoutGil released;
  shuffle_rows(permutation, view_bytes(array), view_bytes(out), row_bytes, threads);
}

}  // namespace

void bind_shuffle(nb::module_& m) {
  using namespace nb::literals;
  m.def("shuffle_rows", &shuffle, "permutation"_a, "array"_a.noconvert(), "out"_a.noconvert(),
        "row_bytes"_a, "threads"_a,
        "Copy row permutation(i) of `array` to row i of `out`, which may be the same memory.");
}

}  // namespace penstock::binding

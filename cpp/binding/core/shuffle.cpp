// Rows of an array in the order of a permutation.
#include "order/shuffle.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "binding/gil.hpp"

namespace nb = nanobind;

namespace penstock::binding {
namespace {

using In = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void of(const Permutation& permutation, const In& in, const Out& out, std::size_t row_bytes,
        unsigned threads) {
  const WithoutGil released;
  penstock::shuffle(permutation, {reinterpret_cast<const std::byte*>(in.data()), in.size()},
                    {reinterpret_cast<std::byte*>(out.data()), out.size()}, row_bytes, threads);
}

}  // namespace

void bind_shuffle(nb::module_& m) {
  using namespace nb::literals;
  m.def("shuffle", &of, "permutation"_a, "array"_a.noconvert(), "out"_a.noconvert(), "row_bytes"_a,
        "threads"_a,
        "Row i of `out` becomes row permutation(i) of `array`, which may be the same memory.");
}

}  // namespace penstock::binding

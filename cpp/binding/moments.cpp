// Statistics of numbers.
#include "ground/moments.hpp"

#include <cstring>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace penstock::binding {
namespace {

template <class T>
using Rows = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
bool sum_rows(const Rows<const T>& rows, const Rows<double>& moments) {
  const std::size_t size = rows.shape(1);
  constexpr std::size_t width = sizeof(Moments) / sizeof(double);
  if (size == 0 || moments.shape(0) != rows.shape(0) || moments.shape(1) != width) {
    throw nb::value_error("moments are rows of seven numbers, one for each row of numbers");
  }
  const WithoutGil released;
  for (std::size_t row = 0; row < rows.shape(0); ++row) {
    Moments found{};
    if (!sum_moments<T>({rows.data() + row * size, size}, found)) return false;
    std::memcpy(moments.data() + row * width, &found, sizeof found);
  }
  return true;
}

template <class T>
void count_numbers(const Column<T>& numbers, const Column<double>& edges, double scale,
                   const WritableColumn<std::int64_t>& counts) {
  if (counts.shape(0) == 0 || edges.shape(0) != counts.shape(0) + 1) {
    throw nb::value_error("bins have one edge more than counts");
  }
  const WithoutGil released;
  count_bins<T>(view(numbers), view(edges), scale, view(counts));
}

template <class T>
void bind_type(nb::module_& m) {
  m.def("sum_moments", &sum_rows<T>, nb::arg("rows").noconvert(),
        nb::arg("moments").noconvert(),
        "Fill in, for each row, how many numbers are finite and how many NaN; of the finite ones\n"
        "the least, the largest, the mean in two parts, and the squares of the distances to it.\n"
        "False if a sum is beyond float64.");
  m.def("count_bins", &count_numbers<T>, nb::arg("numbers").noconvert(),
        nb::arg("edges").noconvert(), nb::arg("scale"), nb::arg("counts").noconvert(),
        "Add to `counts` how many finite numbers are in each bin, of equal ones.\n\n"
        "scale: bins by the distance of the outer edges.");
}

}  // namespace

void bind_moments(nb::module_& m) {
  bind_type<float>(m);
  bind_type<double>(m);
}

}  // namespace penstock::binding

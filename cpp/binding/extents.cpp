// Extents that are sorted and read together.
#include "ground/extents.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <tuple>
#include <utility>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {
namespace {

using Numbers = Column<std::uint32_t>;
using OwnedNumbers = OwnedArray<std::uint32_t>;
using OwnedInts = OwnedArray<std::int64_t>;

std::tuple<OwnedNumbers, OwnedInts, OwnedInts, OwnedNumbers, OwnedInts, OwnedInts, OwnedInts> merge(
    const Numbers& file, const Ints& offset, const Ints& length, const Numbers& part,
    const Ints& target, std::uint32_t parts, std::uint64_t gap_bytes, std::uint64_t reader,
    std::uint64_t readers) {
  MergedExtents merged;
  {
    const WithoutGil released;
    const PlacedExtents placed{view(file), view(offset), view(length), view(part), view(target)};
    merged = merge_extents(placed, parts, gap_bytes, reader, readers);
  }
  return {make_array<std::uint32_t>(std::move(merged.file)),
          make_array<std::int64_t>(std::move(merged.offset)),
          make_array<std::int64_t>(std::move(merged.length)),
          make_array<std::uint32_t>(std::move(merged.part)),
          make_array<std::int64_t>(std::move(merged.target)),
          make_array<std::int64_t>(std::move(merged.edges)),
          make_array<std::int64_t>(std::move(merged.part_runs))};
}

}  // namespace

void bind_extents(nb::module_& m) {
  m.def("merge_extents", merge, "file"_a.noconvert(), "offset"_a.noconvert(),
        "length"_a.noconvert(), "part"_a.noconvert(), "target"_a.noconvert(), "parts"_a,
        "gap_bytes"_a, "reader"_a, "readers"_a,
        "Sort extents by file and offset, and make runs of near neighbours, part by part.\n\n"
        "Returns the five columns in their new order, the edges of the runs, and the bounds of\n"
        "each part's runs. A run belongs to the first part that wants one of its extents.");
}

}  // namespace penstock::binding

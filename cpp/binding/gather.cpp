// Copies between memories of one process.
#include "ground/gather.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "binding/arrays.hpp"
#include "binding/gil.hpp"
#include "ground/standardize.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::binding {

void bind_gather(nb::module_& m) {
  m.def("gather",
        [](const Column<std::uint8_t>& source, const Ints& at, const Ints& lengths,
           const Ints& targets, const WritableColumn<std::uint8_t>& out) {
          const WithoutGil released;
          gather(view_bytes(source), view(at), view(lengths), view(targets), view_bytes(out));
        },
        "source"_a.noconvert(), "at"_a.noconvert(), "lengths"_a.noconvert(),
        "targets"_a.noconvert(), "out"_a.noconvert(),
        "Copy `lengths[i]` bytes from `source[at[i]:]` to `out[targets[i]:]`, for each i.\n\n"
        "IndexError, with nothing copied, if an extent leaves `source` or `out`.");
  m.def(
      "copy_overlaps",
      [](const std::vector<Column<std::uint8_t>>& chunks, const Ints& boxes, const Ints& edges,
         const Ints& places, const Ints& rows, const Ints& shape, std::size_t item_bytes,
         const WritableColumn<std::uint8_t>& windows, unsigned threads) {
        std::vector<std::span<const std::byte>> values;
        for (const auto& chunk : chunks) values.push_back(view_bytes(chunk));
        const WithoutGil released;
        copy_overlaps({values, view(boxes), view(edges), view(places), view(rows), view(shape)},
                      item_bytes, view_bytes(windows), threads);
      },
      "chunks"_a, "boxes"_a.noconvert(), "edges"_a.noconvert(), "places"_a.noconvert(),
      "rows"_a.noconvert(), "shape"_a.noconvert(), "item_bytes"_a, "windows"_a.noconvert(),
      "threads"_a,
      "Copy what windows of an array have of its chunks to rows of `windows`.\n\n"
      "boxes: of each chunk, axis by axis: its first indices in the array, those behind its last,\n"
      "and its shape in `chunks`, whose front it is.\n"
      "edges: of each chunk, its first window in `places`, their first indices axis by axis, and in\n"
      "`rows`; and the end.\n"
      "IndexError or ValueError, with nothing copied, if sizes do not fit.");
  m.def(
      "pack_extents",
      [](const Column<std::uint64_t>& addresses, const Ints& lengths, std::size_t alignment,
         const WritableColumn<std::uint8_t>& out, unsigned threads,
         const WritableColumn<std::uint32_t>& checksums) {
        const WithoutGil released;
        pack_extents(view(addresses), view(lengths), alignment, view_bytes(out), threads,
                     view(checksums));
      },
      "addresses"_a.noconvert(), "lengths"_a.noconvert(), "alignment"_a, "out"_a.noconvert(),
      "threads"_a, "checksums"_a.noconvert(),
      "Copy `lengths[i]` bytes from each address into `out`, one after the other.\n\n"
      "Zeros fill each extent up to a multiple of `alignment`; `checksums[i]` becomes the CRC-32C\n"
      "of extent i with its zeros. IndexError unless the extents fill `out` exactly. The addresses\n"
      "are not checked.");
  m.def(
      "standardize",
      [](const Column<std::uint8_t>& numbers, std::string_view kind, const Column<double>& mean,
         const Column<double>& sd, std::size_t inner, const WritableColumn<std::uint8_t>& out,
         bool halves, unsigned threads) {
        const WithoutGil released;
        standardize(view_bytes(numbers), kind, view(mean), view(sd), inner, view_bytes(out),
                    halves, threads);
      },
      "numbers"_a.noconvert(), "kind"_a, "mean"_a.noconvert(), "sd"_a.noconvert(), "inner"_a,
      "out"_a.noconvert(), "halves"_a, "threads"_a,
      "Write (x - mean[r]) / sd[r] for each number x, computed in float64, to `out` as float32.\n\n"
      "Numbers are of `kind`, as numpy names it, in lines of `inner`, each of the next row r. With\n"
      "`halves` they are written as bfloat16. ValueError if the sizes do not fit.");
  m.def("fence", &fence,
        "Order this thread's accesses to shared memory.\n\n"
        "A thread that reads a value written after this call, and then calls `fence` itself, sees\n"
        "all values written before this call.");
}

}  // namespace penstock::binding

// Extents in the order of storage, and near neighbours read together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Columns of extents with destinations, as in `penstock.extent.Placed`; all of one size.
struct PlacedExtents {
  std::span<const std::uint32_t> file;
  std::span<const std::int64_t> offset, length;
  std::span<const std::uint32_t> part;
  std::span<const std::int64_t> target;
};

// The same columns, grouped by part and in runs; run j has the extents edges[j]:edges[j+1], and part
// k the runs part_runs[k]:part_runs[k+1].
struct MergedExtents {
  std::vector<std::uint32_t> file;
  std::vector<std::int64_t> offset, length;
  std::vector<std::uint32_t> part;
  std::vector<std::int64_t> target, edges, part_runs;
};

// Write the numbers of all extents to `order`, by ascending file and offset; of equals the one with
// the lower number first. Takes as many passes as the bits that differ need, 8 to 11 bits each.
//
// Throws std::bad_alloc, and std::invalid_argument if the sizes differ or there are 2^32 or more.
void sort_extents(std::span<const std::uint32_t> files, std::span<const std::int64_t> offsets,
                  std::span<std::uint32_t> order);

// Sort the extents, make runs of neighbours in one file with at most `gap_bytes` between them, and
// give each run to the first of the `parts` that wants one of its extents. Runs have at most
// limits::run_bytes_max and limits::run_extents_max. A part's runs go from run
// reader * runs / readers on, and those before it come last.
//
// Throws as sort_extents does, and std::invalid_argument for a part that there is not.
MergedExtents merge_extents(const PlacedExtents& placed, std::uint32_t parts,
                            std::uint64_t gap_bytes, std::uint64_t reader, std::uint64_t readers);

}  // namespace penstock

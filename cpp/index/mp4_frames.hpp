// The frames that a track shows, and their groups, made of its packets.
#pragma once

#include <cstdint>
#include <limits>

#include "index/mp4_packets.hpp"
#include "index/walk_mp4.hpp"

namespace penstock::mp4 {

// The part of a track that is shown, in ticks of the track: from `start` to `stop`; and `delay` before.
struct Edit {
  std::int64_t start = 0, stop = std::numeric_limits<std::int64_t>::max(), delay = 0;
  bool cuts = true;  // frames outside are left out; in fragmented files, times are moved only
};

// Read an edit list, whose durations are in ticks of the movie, of `ticks` a second.
Edit read_edit(const Box& box, std::uint32_t ticks, std::uint32_t scale);

// Number the frames that are shown, and divide the packets into groups.
void lay_out(Walk& walk, const Packets& packets, const Edit& edit, const Box& movie);

}  // namespace penstock::mp4

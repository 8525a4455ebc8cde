// The first track of video, or of sound, of an MP4 or QuickTime file: each frame's bytes, its place
// in the sequence shown, and its time.
//
// Frames are numbered in the sequence of showing, packets in that of decoding; where B-frames are
// used, these differ. Frames before the first keyframe, and those that an edit list leaves out, are
// not counted: players and FFmpeg do not show them either.
//
// A group is what is decoded to have the frames from a keyframe to the next. Its packets begin at
// the keyframe, and end with the last one of its frames. In an open group frames that are shown
// before the next keyframe refer to it: the group has its packet too.
//
// Of sound all packets are one group; what an edit list leaves out is in it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ground/parse_error.hpp"
#include "index/source.hpp"

namespace penstock::mp4 {

struct Walk {
  std::string codec, config;  // the decoder's name, and what it is given first
  std::uint32_t width = 0, height = 0, channels = 0;
  unsigned turns = 0;                // quarter turns clockwise to show a frame upright
  std::uint32_t scale = 0;           // ticks of a second
  std::vector<std::uint32_t> size;   // of packets
  std::vector<std::int16_t> shift;   // of packets: place in the sequence shown, less the number; or empty: 0
  // Of groups: the number of frames, the first and last packet, the first frame's place in the
  // sequence shown, and the number of extents.
  std::vector<std::int64_t> frames, first_packet, last_packet, place, pieces;
  std::vector<std::int64_t> offset, length;  // of extents
  // Runs of frames of one distance: the number of the first, its time and the distance, in ticks.
  std::vector<std::int64_t> times;
  std::int64_t end = 0;  // time at which the last frame ends
  // Of sound: the ticks from the first packet on at which an edit list begins and ends.
  std::int64_t start = 0, stop = std::numeric_limits<std::int64_t>::max();
  std::optional<ParseError> parse_error;
  int read_error = 0;  // errno if reading failed
};

// one_group:  all frames are one group. sound:  of the first track of sound.
Walk walk(Source& source, bool one_group, bool sound = false);

}  // namespace penstock::mp4

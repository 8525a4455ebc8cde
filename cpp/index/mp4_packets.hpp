// The packets of a track of an MP4 file: where each is, when it is decoded and when it is shown.
//
// A packet is what the container calls a sample: the bytes of one frame. They are stored in the
// sequence of decoding.
//
//   stsz   bytes of each packet              stsc, stco, co64   where they are
//   stts   from a packet to the next, ticks  ctts               from decoding to showing
//   stss   keyframes; without it, all are    trun               all of this, of one fragment's packets
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "index/mp4_boxes.hpp"

namespace penstock::mp4 {

struct Packets {
  std::vector<std::int64_t> size, offset;
  std::vector<std::int64_t> decoded, duration;  // when, and how long until the next, in ticks
  std::vector<std::int64_t> delay;              // from decoding to showing
  std::vector<std::int64_t> keys;               // numbers of the keyframes
  std::int64_t clock = 0;                       // when the next one is decoded
};

// Add the packets of the tables of a track.
void add_tables(Packets& packets, const Tree& track, const Box& movie, std::uint64_t file_bytes);

// Values that the packets of fragments have unless these say else; by the track's number.
struct Defaults {
  std::uint32_t duration = 0, size = 0, flags = 0;
};
using AllDefaults = std::unordered_map<std::uint32_t, Defaults>;

AllDefaults read_defaults(const Tree& movie);

// Add the packets that a fragment has of a track.
void add_fragment(Packets& packets, const Tree& fragment, const AllDefaults& defaults,
                  std::uint32_t track, std::uint64_t file_bytes);

// Check that all packets are in the file.
void check_packets(const Packets& packets, const Box& movie, std::uint64_t file_bytes);

}  // namespace penstock::mp4

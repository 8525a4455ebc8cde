#include "index/mp4_frames.hpp"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "ground/limits.hpp"

namespace penstock::mp4 {
namespace {

using Column = std::vector<std::int64_t>;

constexpr std::int64_t ahead_max = (1 << 15) - 1;  // places between a frame's turns in both sequences
constexpr std::uint64_t extents_max = 2 * limits::film_frames_max;
constexpr std::uint64_t ticks_max = std::uint64_t{1} << 61;

// Convert ticks of the movie into those of the track, rounded.
std::int64_t convert(std::uint64_t duration, std::uint32_t ticks, std::uint32_t scale, const Box& box) {
  const std::uint64_t seconds = duration / ticks, rest = duration % ticks;
  if (duration >= ticks_max || seconds >= ticks_max / scale)
    throw box.flaw("an edit of " + with_commas(duration) + " ticks");
  return static_cast<std::int64_t>(seconds * scale + (rest * scale + ticks / 2) / ticks);
}

// The place of each packet in the sequence shown, and the packet at each place.
struct Sequence {
  Column packet, place, shown;
};

Sequence sort_shown(const Packets& packets) {
  const std::size_t count = packets.size.size();
  Sequence sequence{Column(count), Column(count), Column(count)};
  for (std::size_t n = 0; n < count; ++n) sequence.shown[n] = packets.decoded[n] + packets.delay[n];
  std::iota(sequence.packet.begin(), sequence.packet.end(), 0);
  if (std::is_sorted(sequence.shown.begin(), sequence.shown.end())) {
    sequence.place = sequence.packet;
    return sequence;
  }
  const Column shown = sequence.shown;
  const auto at = [&](std::int64_t packet) { return shown[static_cast<std::size_t>(packet)]; };
  std::stable_sort(sequence.packet.begin(), sequence.packet.end(),
                   [&](std::int64_t a, std::int64_t b) { return at(a) < at(b); });
  for (std::size_t n = 0; n < count; ++n) {
    sequence.place[static_cast<std::size_t>(sequence.packet[n])] = static_cast<std::int64_t>(n);
    sequence.shown[n] = at(sequence.packet[n]);
  }
  return sequence;
}

// Numbers of the packets that do not follow the one before them in the file.
std::vector<std::size_t> find_breaks(const Packets& packets) {
  std::vector<std::size_t> breaks;
  for (std::size_t n = 1; n < packets.size.size(); ++n)
    if (packets.offset[n] != packets.offset[n - 1] + packets.size[n - 1]) breaks.push_back(n);
  return breaks;
}

// Add the extents of the packets from `first` to `last`.
void add_pieces(Walk& walk, const Packets& packets, const std::vector<std::size_t>& breaks,
                std::size_t first, std::size_t last, const Box& movie) {
  const auto next = std::upper_bound(breaks.begin(), breaks.end(), first);
  const auto stop = std::upper_bound(next, breaks.end(), last);
  walk.pieces.push_back(stop - next + 1);
  if (walk.offset.size() + static_cast<std::size_t>(stop - next) > extents_max)
    throw movie.flaw("its groups overlap, and lie in more than " + with_commas(extents_max) + " pieces");
  for (auto at = next;; ++at) {
    const std::size_t end = at == stop ? last : *at - 1;
    walk.offset.push_back(packets.offset[first]);
    walk.length.push_back(packets.offset[end] + packets.size[end] - packets.offset[first]);
    if (at == stop) break;
    first = *at;
  }
}

void add_times(Walk& walk, const Packets& packets, const Sequence& sequence, const Edit& edit,
               std::size_t first, std::size_t end) {
  const auto duration_at = [&](std::size_t place) {
    return packets.duration[static_cast<std::size_t>(sequence.packet[place])];
  };
  const std::int64_t shift = edit.delay - edit.start;
  std::int64_t before = 0;
  for (std::size_t n = first; n + 1 < end; ++n) {
    const std::int64_t distance = sequence.shown[n + 1] - sequence.shown[n];
    if (n == first || distance != before)
      walk.times.insert(walk.times.end(), {static_cast<std::int64_t>(n - first),
                                           sequence.shown[n] + shift, distance});
    before = distance;
  }
  if (end - first == 1)
    walk.times = {0, sequence.shown[first] + shift, duration_at(first)};
  walk.end = sequence.shown[end - 1] + shift + duration_at(end - 1);
}

}  // namespace

Edit read_edit(const Box& box, std::uint32_t ticks, std::uint32_t scale) {
  const bool wide = box.u8(0) != 0;
  const std::uint64_t count = box.u32(4);
  const std::size_t row_bytes = wide ? 20 : 12;
  box.table(8, count, row_bytes);
  Edit edit;
  std::uint64_t delay = 0;
  bool found = false;
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t at = 8 + n * row_bytes;
    const std::uint64_t duration = wide ? box.u64(at) : box.u32(at);
    const std::int64_t start = wide ? static_cast<std::int64_t>(box.u64(at + 8)) : box.i32(at + 4);
    if (start < 0) {  // nothing is shown for so long
      if (!found) delay += std::min(duration, ticks_max);
      delay = std::min(delay, ticks_max);
      continue;
    }
    if (found || box.i32(at + row_bytes - 4) >> 16 != 1)
      throw ParseError{box.start, "its edit list shows several parts, or at another speed: write the "
                                  "film without"};
    found = true;
    if (static_cast<std::uint64_t>(start) >= ticks_max)
      throw box.flaw("an edit of " + with_commas(duration) + " ticks at " + with_commas(start));
    edit.start = start;
    if (duration != 0) edit.stop = start + convert(duration, ticks, scale, box);
  }
  if (found) edit.delay = convert(delay, ticks, scale, box);
  return edit;
}

void lay_out(Walk& walk, const Packets& packets, const Edit& edit, const Box& movie) {
  const std::size_t count = packets.size.size();
  const Sequence sequence = sort_shown(packets);
  std::int64_t ahead = 0;
  for (std::size_t n = 0; n < count; ++n)
    ahead = std::max(ahead, std::abs(sequence.place[n] - static_cast<std::int64_t>(n)));
  if (ahead > ahead_max)
    throw movie.flaw("a frame is shown " + with_commas(ahead) + " frames before its turn");
  walk.size.assign(packets.size.begin(), packets.size.end());
  for (std::size_t n = 0; ahead > 0 && n < count; ++n)
    walk.shift.push_back(static_cast<std::int16_t>(sequence.place[n] - static_cast<std::int64_t>(n)));

  const auto place_of_key = [&](std::size_t key) {
    return sequence.place[static_cast<std::size_t>(packets.keys[key])];
  };
  const std::size_t keys = packets.keys.size();
  for (std::size_t key = 1; key < keys; ++key)
    if (place_of_key(key) <= place_of_key(key - 1))
      throw movie.flaw("keyframes are shown in another sequence than they are decoded in");
  const auto find = [&](std::int64_t time) {
    return std::lower_bound(sequence.shown.begin(), sequence.shown.end(), time) - sequence.shown.begin();
  };
  const std::int64_t first = std::max<std::int64_t>(edit.cuts ? find(edit.start) : 0, place_of_key(0));
  const std::int64_t end = edit.cuts ? find(edit.stop) : static_cast<std::int64_t>(count);
  if (end <= first) throw movie.flaw("its edit list shows none of the frames");
  const std::vector<std::size_t> breaks = find_breaks(packets);
  std::int64_t start = first;
  for (std::size_t key = 0; key < keys; ++key) {
    const std::int64_t stop = key + 1 < keys ? std::clamp(place_of_key(key + 1), first, end) : end;
    if (stop <= start) continue;
    const auto [earliest, last] = std::minmax_element(sequence.packet.begin() + start,
                                                      sequence.packet.begin() + stop);
    if (*earliest < packets.keys.front())
      throw movie.flaw("a frame behind the first keyframe is decoded before it");
    walk.frames.push_back(stop - start);
    walk.place.push_back(start);
    walk.first_packet.push_back(
        *(std::upper_bound(packets.keys.begin(), packets.keys.end(), *earliest) - 1));
    walk.last_packet.push_back(*last);
    add_pieces(walk, packets, breaks, static_cast<std::size_t>(walk.first_packet.back()),
               static_cast<std::size_t>(*last), movie);
    start = stop;
  }
  add_times(walk, packets, sequence, edit, static_cast<std::size_t>(first), static_cast<std::size_t>(end));
}

}  // namespace penstock::mp4

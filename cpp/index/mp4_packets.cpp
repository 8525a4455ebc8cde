#include "index/mp4_packets.hpp"

#include <algorithm>

#include "ground/limits.hpp"

namespace penstock::mp4 {
namespace {

constexpr std::uint32_t not_sync = 1u << 16, depends = 1u << 24;  // flags of packets in fragments
constexpr std::uint64_t ticks_max = std::uint64_t{1} << 62;

void check_count(std::uint64_t count, const Box& box) {
  if (count > limits::film_frames_max)
    throw box.flaw(with_commas(count) + " frames, of " +
                   with_commas(limits::film_frames_max) + " at most");
}

// Call `use` with the value of each packet, of a table of runs of equal values.
template <typename Use>
void read_runs(const Box& box, std::uint64_t count, const Use& use) {
  const std::uint64_t runs = box.u32(4);
  const std::byte* table = box.table(8, runs, 8);
  std::uint64_t total = 0;
  for (std::uint64_t run = 0; run < runs; ++run) total += big_u32_at(table + 8 * run);
  if (total != count)
    throw box.flaw("times of " + with_commas(total) + " frames, and there are " + with_commas(count));
  for (std::uint64_t run = 0; run < runs; ++run) {
    const std::uint32_t value = big_u32_at(table + 8 * run + 4);
    for (std::uint32_t left = big_u32_at(table + 8 * run); left > 0; --left) use(value);
  }
}

// Find where packets are, of the chunks that they are in.
void place_packets(Packets& packets, const Tree& track, const Box& movie, std::uint64_t file_bytes) {
  const bool wide = track.find(kind_of("co64")) != nullptr;
  const Box& chunks = track.take(wide ? kind_of("co64") : kind_of("stco"), movie);
  const std::uint64_t count = chunks.u32(4);
  const std::byte* starts = chunks.table(8, count, wide ? 8 : 4);
  const auto start_of = [&](std::uint64_t n) {
    return wide ? big_u64_at(starts + 8 * n) : std::uint64_t{big_u32_at(starts + 4 * n)};
  };
  for (std::uint64_t n = 0; n < count; ++n)
    if (start_of(n) > file_bytes)
      throw chunks.flaw("frames at byte " + with_commas(start_of(n)) + ", beyond the end of the file");
  const Box& box = track.take(kind_of("stsc"), movie);
  const std::uint64_t listed = box.u32(4);
  const std::byte* runs = box.table(8, listed, 12);
  std::uint64_t chunk = 1, number = 0, frames = 0;
  for (std::uint64_t run = 0; run < listed; ++run) {
    const std::uint64_t stop = run + 1 < listed ? big_u32_at(runs + 12 * (run + 1)) : count + 1;
    if (big_u32_at(runs + 12 * run) != chunk || stop <= chunk || stop > count + 1) break;
    const std::uint64_t each = big_u32_at(runs + 12 * run + 4);
    for (; chunk < stop; ++chunk) {
      frames += each;
      auto at = static_cast<std::int64_t>(start_of(chunk - 1));
      for (; number < std::min<std::uint64_t>(frames, packets.size.size()); ++number) {
        packets.offset.push_back(at);
        at += packets.size[number];
      }
    }
  }
  if (listed == 0 || chunk != count + 1)
    throw box.flaw(with_commas(listed) + " runs do not make up " + with_commas(count) + " chunks");
  if (frames < packets.size.size())
    throw box.flaw("chunks of " + with_commas(frames) + " frames in all, and there are " +
                   with_commas(std::uint64_t{packets.size.size()}));
}

void read_keys(Packets& packets, const Box& box) {
  const std::uint64_t listed = box.u32(4), count = packets.size.size();
  const std::byte* table = box.table(8, listed, 4);
  if (listed == 0) throw box.flaw("no keyframe: no frame can be decoded");
  for (std::uint64_t row = 0, last = 0; row < listed; ++row) {
    const std::uint64_t key = big_u32_at(table + 4 * row);
    if (key <= last || key > count)
      throw box.flaw("keyframes are not " + with_commas(listed) + " of " + with_commas(count) +
                     " frames, in order");
    packets.keys.push_back(static_cast<std::int64_t>(key - 1));
    last = key;
  }
}

// A run of packets of a fragment; `follows` is where it starts by default, and then where it ends.
void add_run(Packets& packets, const Box& box, bool wanted, const Defaults& defaults,
             std::uint64_t base, std::uint64_t& follows, std::uint64_t file_bytes) {
  const std::uint32_t flags = box.u32(0);
  const std::uint64_t count = box.u32(4);
  std::size_t at = 8;
  auto start = static_cast<std::int64_t>(follows);
  if (flags & 1) {
    start = static_cast<std::int64_t>(base) + box.i32(at);
    at += 4;
  }
  if (start < 0 || static_cast<std::uint64_t>(start) > file_bytes)
    throw box.flaw("frames at byte " + with_commas(start) + ", outside the file");
  std::uint32_t first_flags = defaults.flags;
  if (flags & 4) {
    first_flags = box.u32(at);
    at += 4;
  }
  const bool sized = flags & 0x200;
  if (!sized && count * std::max(1u, defaults.size) > file_bytes)
    throw box.flaw(with_commas(count) + " frames of " + with_commas(std::uint64_t{defaults.size}) +
                   " bytes");
  std::size_t row_bytes = 0;
  for (const unsigned bit : {0x100u, 0x200u, 0x400u, 0x800u}) row_bytes += flags & bit ? 4 : 0;
  const std::byte* row = row_bytes > 0 ? box.table(at, count, row_bytes) : nullptr;
  if (wanted) check_count(packets.size.size() + count, box);
  else if (!sized) {
    follows = static_cast<std::uint64_t>(start) + count * defaults.size;
    return;
  }
  for (std::uint64_t n = 0; n < count; ++n) {
    const auto take = [&](unsigned bit, std::uint32_t otherwise) {
      if (!(flags & bit)) return otherwise;
      const std::uint32_t value = big_u32_at(row);
      row += 4;
      return value;
    };
    const std::uint32_t duration = take(0x100, defaults.duration), size = take(0x200, defaults.size);
    const std::uint32_t own = take(0x400, defaults.flags);
    const auto delay = static_cast<std::int32_t>(take(0x800, 0));
    if (wanted) {
      if (((n == 0 && (flags & 4) ? first_flags : own) & (not_sync | depends)) == 0)
        packets.keys.push_back(static_cast<std::int64_t>(packets.size.size()));
      packets.size.push_back(size);
      packets.offset.push_back(start);
      packets.decoded.push_back(packets.clock);
      packets.duration.push_back(duration);
      packets.delay.push_back(delay);
      packets.clock += duration;
    }
    start += size;
  }
  follows = static_cast<std::uint64_t>(start);
}

}  // namespace

void add_tables(Packets& packets, const Tree& track, const Box& movie, std::uint64_t file_bytes) {
  const Box& sizes = track.take(kind_of("stsz"), movie);
  const std::uint64_t same = sizes.u32(4), count = sizes.u32(8);
  if (same != 0 && count * same > file_bytes)
    throw sizes.flaw(with_commas(count) + " frames of " + with_commas(same) + " bytes");
  const std::byte* table = same != 0 ? nullptr : sizes.table(12, count, 4);
  check_count(count, sizes);
  if (count == 0) return;
  for (std::uint64_t n = 0; n < count; ++n)
    packets.size.push_back(same != 0 ? static_cast<std::int64_t>(same) : big_u32_at(table + 4 * n));
  place_packets(packets, track, movie, file_bytes);
  read_runs(track.take(kind_of("stts"), movie), count, [&](std::uint32_t duration) {
    packets.decoded.push_back(packets.clock);
    packets.duration.push_back(duration);
    packets.clock += duration;
  });
  if (const Box* delays = track.find(kind_of("ctts")))
    read_runs(*delays, count, [&](std::uint32_t delay) {
      packets.delay.push_back(static_cast<std::int32_t>(delay));
    });
  else
    packets.delay.resize(count);
  if (const Box* keys = track.find(kind_of("stss"))) return read_keys(packets, *keys);
  for (std::uint64_t n = 0; n < count; ++n) packets.keys.push_back(static_cast<std::int64_t>(n));
}

AllDefaults read_defaults(const Tree& movie) {
  AllDefaults all;
  for (const Tree& one : movie.several)
    if (one.box.kind == kind_of("trex"))
      all[one.box.u32(4)] = {one.box.u32(12), one.box.u32(16), one.box.u32(20)};
  return all;
}

void add_fragment(Packets& packets, const Tree& fragment, const AllDefaults& defaults,
                  std::uint32_t track, std::uint64_t file_bytes) {
  std::uint64_t end = fragment.box.start;
  for (const Tree& part : fragment.several) {
    if (part.box.kind != kind_of("traf")) continue;
    const Box& head = part.take(kind_of("tfhd"), part.box);
    const std::uint32_t flags = head.u32(0);
    const bool wanted = head.u32(4) == track;
    std::uint64_t base = flags & 0x20000 ? fragment.box.start : end;
    std::size_t at = 8;
    if (flags & 1) {
      base = head.u64(at);
      at += 8;
      if (base > file_bytes)
        throw head.flaw("frames at byte " + with_commas(base) + ", outside the file");
    }
    const auto found = defaults.find(head.u32(4));
    Defaults own = found != defaults.end() ? found->second : Defaults{};
    std::uint32_t kind = 0;
    const auto take = [&](unsigned bit, std::uint32_t& value) {
      if (!(flags & bit)) return;
      value = head.u32(at);
      at += 4;
    };
    take(0x02, kind);
    take(0x08, own.duration);
    take(0x10, own.size);
    take(0x20, own.flags);
    if (const Box* time = part.find(kind_of("tfdt")); time != nullptr && wanted) {
      const std::uint64_t clock = time->u8(0) != 0 ? time->u64(4) : time->u32(4);
      if (clock >= ticks_max) throw time->flaw("a fragment at tick " + with_commas(clock));
      packets.clock = static_cast<std::int64_t>(clock);
    }
    end = base;
    for (const Tree& run : part.several)
      if (run.box.kind == kind_of("trun"))
        add_run(packets, run.box, wanted, own, base, end, file_bytes);
  }
}

void check_packets(const Packets& packets, const Box& movie, std::uint64_t file_bytes) {
  const std::size_t count = packets.size.size();
  for (std::size_t n = 0; n < count; ++n) {
    const auto size = static_cast<std::uint64_t>(packets.size[n]);
    const auto offset = static_cast<std::uint64_t>(packets.offset[n]);
    if (size > 0 && size <= file_bytes && offset <= file_bytes - size) continue;
    throw ParseError{movie.start, "frame " + with_commas(std::uint64_t{n}) + " of " +
                                      with_commas(std::uint64_t{count}) + " has " + with_commas(size) +
                                      " bytes at byte " + with_commas(offset) + ", and the file has " +
                                      with_commas(file_bytes) +
                                      ": the file is cut or damaged, copy it again"};
  }
  if (packets.keys.empty())
    throw ParseError{movie.start, "no keyframe: no frame can be decoded"};
}

}  // namespace penstock::mp4

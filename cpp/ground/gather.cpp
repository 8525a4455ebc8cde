#include "ground/gather.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "ground/crc32c.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace penstock {
namespace {

// Copy bytes that nobody reads soon past the caches, so that no line of the target is fetched to be
// overwritten, and what the caches hold stays. 1.5 times as fast as memcpy if all of it is large.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t length) {
#if defined(__SSE2__)
  constexpr std::size_t line = 64, word = 16;
  if (reinterpret_cast<std::uintptr_t>(to) % word == 0) {
    for (; length >= line; length -= line, to += line, from += line) {
      __m128i words[line / word];
      for (std::size_t i = 0; i < line / word; ++i) {
        words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * word));
      }
      for (std::size_t i = 0; i < line / word; ++i) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i * word), words[i]);
      }
    }
  }
#endif
  std::memcpy(to, from, length);
}

// Sum and copy in small pieces, so that a piece is still in the nearest cache and memory is read
// once.
std::uint32_t copy_and_sum(std::byte* to, const std::byte* from, std::size_t length) {
  constexpr std::size_t near_bytes = std::size_t{6} << 10;  // twice what crc32c takes at a time
  std::uint32_t sum = 0;
  for (std::size_t at = 0; at < length; at += near_bytes) {
    const std::size_t part = std::min(near_bytes, length - at);
    sum = crc32c({from + at, part}, sum);
    if (to != from) copy_past_caches(to + at, from + at, part);
  }
#if defined(__SSE2__)
  _mm_sfence();
#endif
  return sum;
}

// Call work(0) to work(count - 1) once each, from `threads` threads, the caller's among them.
template <class Work>
void run_parts(unsigned threads, std::size_t count, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&]() noexcept {
    for (std::size_t i = 0; (i = next.fetch_add(1)) < count;) work(i);
  };
  std::vector<std::jthread> others;
  others.reserve(threads);
  try {
    while (others.size() + 1 < std::min<std::size_t>(threads, count)) others.emplace_back(run);
  } catch (const std::system_error&) {
    // The system grants no more threads: those that run do all the work.
  }
  run();
}

// Bytes from one index of an axis to the next, in C order; at the front, of all.
struct Steps {
  Steps(std::span<const std::int64_t> shape, std::size_t item_bytes)
      : bytes(shape.size() + 1, item_bytes) {
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      if (shape[axis] < 0 ||
          __builtin_mul_overflow(bytes[axis + 1], static_cast<std::size_t>(shape[axis]),
                                 &bytes[axis])) {
        throw std::out_of_range("a chunk or a window has no size");
      }
    }
  }

  std::vector<std::size_t> bytes;
};

// A chunk in memory, and where in the array it begins and ends.
struct Chunk {
  const std::byte* values;
  std::span<const std::int64_t> start, end;
  Steps step;
};

// Copy what the window at `place` has of a chunk.
void copy_overlap(const Chunk& chunk, const Steps& window, std::span<const std::int64_t> shape,
                  std::span<const std::int64_t> place, std::byte* to) {
  const std::size_t axes = shape.size();
  const std::byte* from = chunk.values;
  std::vector<std::size_t> length(axes), at(axes);
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const std::int64_t low = place[axis], first = std::max(low, chunk.start[axis]);
    std::int64_t last = chunk.end[axis];
    if (low <= last - shape[axis]) last = low + shape[axis];
    if (first >= last) return;
    length[axis] = static_cast<std::size_t>(last - first);
    from += static_cast<std::size_t>(first - chunk.start[axis]) * chunk.step.bytes[axis + 1];
    to += static_cast<std::size_t>(first - low) * window.bytes[axis + 1];
  }
  // The last axes that are whole on both sides are one run of bytes.
  std::size_t outer = axes - 1, run = length[outer] * window.bytes[axes];
  while (outer > 0 && run == chunk.step.bytes[outer] && run == window.bytes[outer]) {
    run *= length[--outer];
  }
  for (;;) {
    std::memcpy(to, from, run);
    std::size_t axis = outer;
    while (axis > 0 && ++at[axis - 1] == length[axis - 1]) {
      --axis;
      at[axis] = 0;
      from -= (length[axis] - 1) * chunk.step.bytes[axis + 1];
      to -= (length[axis] - 1) * window.bytes[axis + 1];
    }
    if (axis == 0) return;
    from += chunk.step.bytes[axis];
    to += window.bytes[axis];
  }
}

}  // namespace

void gather(std::span<const std::byte> source, std::span<const std::int64_t> at,
            std::span<const std::int64_t> lengths, std::span<const std::int64_t> targets,
            std::span<std::byte> out) {
  const std::size_t count = at.size();
  if (lengths.size() != count || targets.size() != count) {
    throw std::invalid_argument("columns differ in length");
  }
  const auto inside = [](std::int64_t from, std::int64_t length, std::size_t size) {
    return from >= 0 && length >= 0 && static_cast<std::uint64_t>(from) <= size &&
           static_cast<std::uint64_t>(length) <= size - static_cast<std::uint64_t>(from);
  };
  for (std::size_t i = 0; i < count; ++i) {
    const bool found = inside(at[i], lengths[i], source.size());
    if (found && inside(targets[i], lengths[i], out.size())) continue;
    const std::int64_t from = found ? targets[i] : at[i];
    throw std::out_of_range("extent " + std::to_string(i) + " at " + std::to_string(from) + ", " +
                            std::to_string(lengths[i]) + " bytes, leaves the " +
                            (found ? "destination of " + std::to_string(out.size())
                                   : "source of " + std::to_string(source.size())) +
                            " bytes");
  }
  // Samples lie anywhere: the processor sees where one begins only when it gets there, and goes on
  // by itself after a few lines. These figures were best of 1 to 4 ahead and 4 to 64 lines.
  constexpr std::size_t ahead = 2, line = 64, lines_max = 4;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + ahead < count) {
      const std::byte* next = source.data() + at[i + ahead];
      const auto bytes =
          std::min(static_cast<std::size_t>(lengths[i + ahead]), lines_max * line);
      for (std::size_t b = 0; b < bytes; b += line) __builtin_prefetch(next + b);
    }
    std::memcpy(out.data() + targets[i], source.data() + at[i],
                static_cast<std::size_t>(lengths[i]));
  }
}

void copy_overlaps(const Overlaps& overlaps, std::size_t item_bytes, std::span<std::byte> windows,
                   unsigned threads) {
  const auto& [values, boxes, edges, places, rows, shape] = overlaps;
  const std::size_t axes = shape.size(), chunks = values.size();
  if (axes == 0 || item_bytes == 0 || boxes.size() != 3 * axes * chunks ||
      edges.size() != chunks + 1 || places.size() != axes * rows.size() || edges[0] != 0 ||
      static_cast<std::uint64_t>(edges[chunks]) != rows.size() ||
      !std::is_sorted(edges.begin(), edges.end())) {
    throw std::invalid_argument("columns differ in length");
  }
  const Steps window(shape, item_bytes);
  std::vector<Chunk> found;
  for (std::size_t i = 0; i < chunks; ++i) {
    const auto box = boxes.subspan(3 * axes * i, 3 * axes);
    found.push_back({values[i].data(), box.first(axes), box.subspan(axes, axes),
                     Steps(box.last(axes), item_bytes)});
    bool fits = found[i].step.bytes[0] == values[i].size();
    for (std::size_t axis = 0; axis < axes; ++axis) {
      const std::int64_t start = found[i].start[axis], end = found[i].end[axis];
      fits = fits && start >= 0 && end >= start && end - start <= box[2 * axes + axis];
    }
    if (!fits) throw std::out_of_range("chunk " + std::to_string(i) + " has another size");
  }
  const std::size_t count = window.bytes[0] == 0 ? 0 : windows.size() / window.bytes[0];
  for (const std::int64_t row : rows) {
    if (row < 0 || static_cast<std::size_t>(row) >= count) {
      throw std::out_of_range("row " + std::to_string(row) + " of " + std::to_string(count));
    }
  }
  run_parts(threads, chunks, [&](std::size_t i) {
    const auto first = static_cast<std::size_t>(edges[i]);
    for (std::size_t pair = first; pair < static_cast<std::size_t>(edges[i + 1]); ++pair) {
      copy_overlap(found[i], window, shape, places.subspan(axes * pair, axes),
                   windows.data() + static_cast<std::size_t>(rows[pair]) * window.bytes[0]);
    }
  });
}

void pack_extents(std::span<const std::uint64_t> from, std::span<const std::int64_t> lengths,
             std::size_t alignment, std::span<std::byte> out, unsigned threads,
             std::span<std::uint32_t> checksums) {
  if (lengths.size() != from.size() || checksums.size() != from.size() || alignment == 0) {
    throw std::invalid_argument("columns differ in length");
  }
  struct Part {
    std::size_t extent, to, length;
    const std::byte* from;
    std::uint32_t sum;
  };
  constexpr std::size_t part_bytes = std::size_t{2} << 20;
  std::vector<Part> parts;
  std::size_t end = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (lengths[i] < 0 || static_cast<std::uint64_t>(lengths[i]) > out.size() - end) {
      throw std::out_of_range("extent " + std::to_string(i) + " leaves the destination");
    }
    const auto length = static_cast<std::size_t>(lengths[i]);
    const auto* source = reinterpret_cast<const std::byte*>(from[i]);
    for (std::size_t at = 0; at < length; at += part_bytes) {
      parts.push_back({i, end + at, std::min(part_bytes, length - at), source + at, 0});
    }
    const std::size_t zeros = (alignment - length % alignment) % alignment;
    if (zeros > out.size() - end - length) throw std::out_of_range("no room for zeros");
    end += length + zeros;
  }
  if (end != out.size()) throw std::out_of_range("the destination is not filled");
  run_parts(threads, parts.size(), [&](std::size_t i) {
    Part& part = parts[i];
    part.sum = copy_and_sum(out.data() + part.to, part.from, part.length);
  });
  std::fill(checksums.begin(), checksums.end(), 0u);
  for (const Part& part : parts) {
    std::uint32_t& sum = checksums[part.extent];
    sum = crc32c_concat(sum, part.sum, part.length);
  }
  end = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto length = static_cast<std::size_t>(lengths[i]);
    const std::size_t zeros = (alignment - length % alignment) % alignment;
    const auto padding = out.subspan(end + length, zeros);
    std::fill(padding.begin(), padding.end(), std::byte{0});
    checksums[i] = crc32c(padding, checksums[i]);
    end += length + zeros;
  }
}

// TSan knows no fences, and GCC says so; this one orders what Python reads, which TSan never sees.
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif
void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

}  // namespace penstock

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
  std::atomic<std::size_t> next{0};
  const auto copy = [&]() noexcept {
    for (std::size_t i = 0; (i = next.fetch_add(1)) < parts.size();) {
      Part& part = parts[i];
      part.sum = copy_and_sum(out.data() + part.to, part.from, part.length);
    }
  };
  {
    std::vector<std::jthread> others;
    others.reserve(threads);
    try {
      while (others.size() + 1 < std::min<std::size_t>(threads, parts.size())) {
        others.emplace_back(copy);
      }
    } catch (const std::system_error&) {
      // The system grants no more threads: those that run do all the work.
    }
    copy();
  }
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

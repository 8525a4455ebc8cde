// Theory of operation. A gather of small rows in random order costs a cache miss a row. Two passes
// cost none: the first deals the rows, in the sequence in which they lie, to buckets by where they
// go; the second puts each bucket's rows into place, inside a window of the output that a core's
// cache holds. The permutation says where a row goes (its inverse), and which buckets how many rows
// of a part of the input go to, so that each part's places in each bucket are known before a row is
// moved: no thread waits for another. A bucket is as large as its window, so the first pass writes
// where the second will, and what is kept beside a row is its place in the window.
#include "order/shuffle.hpp"

#include <sys/mman.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ground/parallel.hpp"

namespace penstock {
namespace {

constexpr std::size_t piece = 2048;       // rows whose places are computed at a time
constexpr std::size_t narrow_bits = 16;   // a window's places, as two bytes say them
constexpr std::size_t bucketed_bytes_max = 16;  // larger rows make good use of a cache line
constexpr std::size_t parts_per_thread = 4;     // so that a thread that is held up delays little

// Memory that nothing is written to beforehand, in huge pages where the system has them.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::size_t count) {
    constexpr std::size_t huge_page = 2u << 20;
    const std::size_t bytes = (count * sizeof(T) + huge_page - 1) / huge_page * huge_page;
    data_.reset(static_cast<T*>(std::aligned_alloc(huge_page, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
    ::madvise(data_.get(), bytes, MADV_HUGEPAGE);
  }
  T* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> data_;
};

struct Nothing {};

// Run the jobs on threads. The only error of a job is running out of memory.
template <class PerThread, class Work>
void on_threads(std::size_t jobs, unsigned threads, const Work& work) {
  JobErrors job_errors;
  in_parallel<PerThread>(jobs, threads, job_errors, work);
  if (job_errors.has_any()) throw std::bad_alloc();
}

template <std::size_t bytes>
struct Row {
  std::byte data[bytes];
};

constexpr std::size_t cache_line = 64;

// Copies a whole cache line past the caches: what is not read soon need not be fetched first.
void stream(const void* from, void* to) {
#if defined(__x86_64__)
  const auto* in = static_cast<const __m128i*>(from);
  auto* out = static_cast<__m128i*>(to);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(out + i, _mm_load_si128(in + i));
#else
  std::memcpy(to, from, cache_line);
#endif
}

// The same for any number of bytes at any address.
void stream_all(const void* from, void* to, std::size_t bytes) {
#if defined(__x86_64__)
  const auto* in = static_cast<const std::byte*>(from);
  auto* out = static_cast<std::byte*>(to);
  constexpr std::size_t word = sizeof(__m128i);
  const std::size_t head = std::min(bytes, -reinterpret_cast<std::uintptr_t>(out) % word);
  std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + word <= bytes; at += word)
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at)));
  std::memcpy(out + at, in + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

// Make streamed writes visible before later writes of this thread.
void flush_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// One shuffle in two passes. `Place` holds a place in a window.
template <std::size_t row_bytes, class Place>
class BucketShuffle {
  using Value = Row<row_bytes>;

 public:
  BucketShuffle(const Permutation& permutation, const Value* in, Value* out, std::size_t count,
           unsigned window_bits, unsigned threads)
      : permutation_(permutation),
        in_(in),
        out_(out),
        count_(count),
        bits_(window_bits),
        threads_(threads),
        buckets_(((count - 1) >> window_bits) + 1),
        parts_(std::min<std::size_t>(count / piece + 1, threads * parts_per_thread)),
        next_(parts_ * buckets_),
        places_(count) {}

  void run() {
    std::unique_ptr<Scratch<Value>> copy;
    Value* staged = out_;
    if (in_ == out_) {
      copy = std::make_unique<Scratch<Value>>(count_);
      staged = copy->data();
    }
    on_threads<Nothing>(parts_, threads_, [this](std::size_t part, Nothing&) { count(part); });
    assign();
    on_threads<Bins>(parts_, threads_,
                     [&](std::size_t part, Bins& bins) { deal(part, staged, bins); });
    on_threads<Window>(buckets_, threads_, [&](std::size_t bucket, Window& window) {
      place(bucket, staged, window);
    });
  }

 private:
  // Scratch in which the rows of a window are put in order, in a core's cache.
  struct Window {
    std::vector<Value> rows;
  };

  // visit(row, where it goes) for the rows of a part.
  template <class Visit>
  void visit_rows(std::size_t part, const Visit& visit) const {
    const std::size_t size = (count_ + parts_ - 1) / parts_;
    const std::size_t end = std::min(count_, (part + 1) * size);
    std::array<std::uint64_t, piece> targets;
    for (std::size_t base = part * size; base < end; base += piece) {
      const std::size_t rows = std::min(piece, end - base);
      std::iota(targets.begin(), targets.begin() + static_cast<std::ptrdiff_t>(rows), base);
      const std::span some{targets.data(), rows};
      permutation_.inverse(some, some);
      for (std::size_t i = 0; i < rows; ++i) visit(base + i, targets[i]);
    }
  }

  void count(std::size_t part) {
    std::size_t* counts = &next_[part * buckets_];
    visit_rows(part, [&](std::size_t, std::uint64_t target) { ++counts[target >> bits_]; });
  }

  // Counts become the places of a part's first row in each bucket.
  void assign() {
    for (std::size_t bucket = 0; bucket < buckets_; ++bucket) {
      std::size_t at = bucket << bits_;
      for (std::size_t part = 0; part < parts_; ++part)
        at += std::exchange(next_[part * buckets_ + bucket], at);
    }
  }

  // Rows on their way to a bucket, until they fill a cache line of it.
  struct alignas(cache_line) Bin {
    static constexpr std::size_t size = std::bit_floor(cache_line / row_bytes);
    static constexpr bool whole = size * row_bytes == cache_line;
    Value rows[size];
    Place places[size];
  };
  struct Bins {
    std::vector<Bin> bin;
    std::vector<std::size_t> first;  // of this part's places in each bucket
  };

  void deal(std::size_t part, Value* const staged, Bins& bins) {
    std::size_t* const next = &next_[part * buckets_];
    bins.bin.resize(buckets_);
    bins.first.assign(next, next + buckets_);
    // Bins are emptied where cache lines end, as far as rows end there.
    const auto address = reinterpret_cast<std::uintptr_t>(staged);
    const bool aligned = Bin::whole && address % row_bytes == 0;
    const std::size_t shift = aligned ? address / row_bytes % Bin::size : 0;
    const auto empty = [&](std::size_t bucket, std::size_t end) {
      const Bin& bin = bins.bin[bucket];
      const std::size_t held = (end + shift - 1) % Bin::size + 1;
      const std::size_t begin = end - std::min(end - bins.first[bucket], held);
      const std::size_t from = (begin + shift) % Bin::size;
      if (aligned && end - begin == Bin::size)
        stream(bin.rows, staged + begin);
      else
        std::memcpy(staged + begin, bin.rows + from, (end - begin) * row_bytes);
      std::memcpy(places_.data() + begin, bin.places + from, (end - begin) * sizeof(Place));
    };
    const Value* const in = in_;
    const unsigned bits = bits_;
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    visit_rows(part, [&](std::size_t row, std::uint64_t target) {
      const std::size_t bucket = target >> bits;
      const std::size_t at = next[bucket]++;
      const std::size_t slot = (at + shift) % Bin::size;
      Bin& bin = bins.bin[bucket];
      bin.rows[slot] = in[row];
      bin.places[slot] = static_cast<Place>(target & mask);
      if (slot + 1 == Bin::size) empty(bucket, at + 1);
    });
    for (std::size_t bucket = 0; bucket < buckets_; ++bucket) {
      const std::size_t end = next[bucket];
      if (end != bins.first[bucket] && (end + shift) % Bin::size != 0) empty(bucket, end);
    }
    flush_streams();
  }

  void place(std::size_t bucket, const Value* staged, Window& window) {
    const std::size_t base = bucket << bits_;
    const std::size_t size = std::min(std::size_t{1} << bits_, count_ - base);
    const Value* const from = staged + base;
    const Place* const places = places_.data() + base;
    window.rows.resize(size);
    Value* const rows = window.rows.data();
    for (std::size_t i = 0; i < size; ++i) rows[places[i]] = from[i];
    stream_all(rows, out_ + base, size * row_bytes);
    flush_streams();
  }

  const Permutation& permutation_;
  const Value* in_;
  Value* out_;
  std::size_t count_;
  unsigned bits_;
  unsigned threads_;
  std::size_t buckets_, parts_;
  std::vector<std::size_t> next_;  // by part and bucket: how many rows, then where the next goes
  Scratch<Place> places_;
};

// In one pass: rows are read wherever they lie, and asked for a few rows before they are copied.
// `fixed_bytes` is the size of a row where the compiler is to know it, else 0.
template <std::size_t fixed_bytes>
void shuffle_by_gather(const Permutation& permutation, const std::byte* in, std::byte* out,
              std::size_t count, std::size_t any_bytes, unsigned threads) {
  constexpr std::size_t ahead = 16, lines_max = 4;
  const std::size_t row_bytes = fixed_bytes != 0 ? fixed_bytes : any_bytes;
  struct Samples {
    std::array<std::uint64_t, piece + ahead> values{};
  };
  const std::size_t jobs = (count + piece - 1) / piece;
  on_threads<Samples>(jobs, threads, [&](std::size_t job, Samples& samples) {
    const std::size_t base = job * piece;
    const std::size_t rows = std::min(piece, count - base);
    permutation.run(base, {samples.values.data(), rows});
    for (std::size_t i = 0; i < rows; ++i) {
      const std::byte* next = in + samples.values[i + ahead] * row_bytes;
      for (std::size_t b = 0; b < std::min(row_bytes, lines_max * cache_line); b += cache_line)
        __builtin_prefetch(next + b);
      std::memcpy(out + (base + i) * row_bytes, in + samples.values[i] * row_bytes, row_bytes);
    }
  });
}

// `in` and `out` do not overlap, or are the same where rows are dealt to buckets.
template <std::size_t row_bytes>
void shuffle_by_buckets(const Permutation& permutation, const std::byte* in, std::byte* out,
              std::size_t count, unsigned threads, std::size_t streams) {
  const auto* from = reinterpret_cast<const Row<row_bytes>*>(in);
  auto* to = reinterpret_cast<Row<row_bytes>*>(out);
  const auto length = static_cast<unsigned>(std::bit_width(count - 1));
  const auto dealt_bits = static_cast<unsigned>(std::bit_width(streams - 1));
  if (length <= narrow_bits + dealt_bits)
    BucketShuffle<row_bytes, std::uint16_t>(permutation, from, to, count, narrow_bits, threads).run();
  else
    BucketShuffle<row_bytes, std::uint32_t>(permutation, from, to, count,
                                       std::min(32u, length - dealt_bits), threads)
        .run();
}

struct Ways {
  void (*shuffle_by_buckets)(const Permutation&, const std::byte*, std::byte*, std::size_t, unsigned,
                   std::size_t);
  void (*shuffle_by_gather)(const Permutation&, const std::byte*, std::byte*, std::size_t, std::size_t,
                   unsigned);
};

// Both ways for rows of 1, 2, ... bytes.
template <std::size_t... less>
constexpr std::array<Ways, sizeof...(less)> ways(std::index_sequence<less...>) {
  return {Ways{shuffle_by_buckets<less + 1>, shuffle_by_gather<less + 1>}...};
}
constexpr auto ways_by_size = ways(std::make_index_sequence<bucketed_bytes_max>{});

}  // namespace

void shuffle_rows(const Permutation& permutation, std::span<const std::byte> in,
             std::span<std::byte> out, std::size_t row_bytes, unsigned threads,
             const CacheLimits& caches) {
  if (in.size() != out.size()) throw std::invalid_argument("in and out differ in size");
  if (row_bytes == 0 || in.size() % row_bytes != 0 || threads == 0)
    throw std::invalid_argument("rows and threads are at least one, and rows are whole");
  const std::size_t count = in.size() / row_bytes;
  if (count == 0) return;
  const bool small = row_bytes <= bucketed_bytes_max;
  const Ways way = small ? ways_by_size[row_bytes - 1] : Ways{nullptr, shuffle_by_gather<0>};
  if (small && in.size() > caches.bytes)
    return way.shuffle_by_buckets(permutation, in.data(), out.data(), count, threads, caches.streams);
  if (in.data() != out.data())
    return way.shuffle_by_gather(permutation, in.data(), out.data(), count, row_bytes, threads);
  const Scratch<std::byte> copy(in.size());
  std::memcpy(copy.data(), in.data(), in.size());
  way.shuffle_by_gather(permutation, copy.data(), out.data(), count, row_bytes, threads);
}

}  // namespace penstock

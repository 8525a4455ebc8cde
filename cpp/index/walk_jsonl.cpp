#include "index/walk_jsonl.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "ground/processor.hpp"
#include "index/column_growth.hpp"

namespace penstock::jsonl {
namespace {

constexpr std::size_t part_bytes = 16 * 1024;  // of a block: its places stay in the first cache
constexpr std::array byte_order_mark{std::byte{0xef}, std::byte{0xbb}, std::byte{0xbf}};

std::size_t find_newlines_by_memchr(const std::byte* bytes, std::size_t size, std::uint32_t* out) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < size;) {
    const void* found = std::memchr(bytes + at, '\n', size - at);
    if (found == nullptr) break;
    at = static_cast<std::size_t>(static_cast<const std::byte*>(found) - bytes);
    out[count++] = static_cast<std::uint32_t>(at++);
  }
  return count;
}

#if defined(__x86_64__)
// The first newline of 64 bytes is written without asking whether there is one: with lines of some
// hundred bytes that branch would be the only one that is hard to predict.
__attribute__((target("avx2,bmi"))) std::size_t find_newlines_avx2(const std::byte* bytes,
                                                                   std::size_t size,
                                                                   std::uint32_t* out) {
  const __m256i newline = _mm256_set1_epi8('\n');
  std::size_t count = 0, at = 0;
  for (; at + 64 <= size; at += 64) {
    const auto* p = reinterpret_cast<const __m256i*>(bytes + at);
    const __m256i low = _mm256_cmpeq_epi8(_mm256_loadu_si256(p), newline);
    const __m256i high = _mm256_cmpeq_epi8(_mm256_loadu_si256(p + 1), newline);
    std::uint64_t places = static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
                           std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(high))} << 32;
    out[count] = static_cast<std::uint32_t>(at + _tzcnt_u64(places));
    count += places != 0;
    while ((places &= places - 1) != 0)
      out[count++] = static_cast<std::uint32_t>(at + _tzcnt_u64(places));
  }
  for (; at < size; ++at)
    if (bytes[at] == std::byte{'\n'}) out[count++] = static_cast<std::uint32_t>(at);
  return count;
}
#endif

bool is_blank(std::byte b) {
  return b == std::byte{' '} || b == std::byte{'\t'} || b == std::byte{'\r'};
}

// Makes lines of the newlines in consecutive parts of a file.
class LineBuilder {
 public:
  LineBuilder(std::uint64_t start, std::uint64_t file_bytes, Walk& out)
      : start_(start), growth_(file_bytes), out_(out) {}

  // Take the bytes at `at`, which follow those taken before; at most `part_bytes`.
  void take(std::uint64_t at, std::span<const std::byte> part) {
    // memchr is as fast as reading where newlines are rare, and pays for each of them.
    static const FindNewlines find_many = list_newline_finders().front().find;
    const FindNewlines find_newlines = dense_ ? find_many : find_newlines_by_memchr;
    const std::size_t count = find_newlines(part.data(), part.size(), newlines_.get());
    dense_ = count > part_bytes / 1024;
    make_room(at, count);
    std::size_t begin = 0;  // of the open line in this part
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t end = newlines_[i];
      if (end > 0) last_ = part[end - 1];
      // Most lines begin with what is no blank, so that one look is enough.
      if (end > begin && !is_blank(part[begin])) blank_ = false;
      else look_for_content(part.subspan(begin, end - begin));
      add_line(at + end);
      begin = end + 1;
      start_ = at + begin;
      blank_ = true;
    }
    look_for_content(part.subspan(begin));
    last_ = part.back();
  }

  // Take the end of the file.
  void finish(std::uint64_t end) {
    make_room(end, 1);
    add_line(end);
    out_.offset.resize(count_);
    out_.length.resize(count_);
  }

 private:
  // The columns are larger than their rows until the end, so that no row asks for room.
  void make_room(std::uint64_t walked, std::size_t rows) {
    growth_.reserve(walked, count_ + rows, out_.offset, out_.length);
    if (out_.offset.size() - count_ >= rows) return;
    const std::size_t room = std::max(out_.offset.capacity(), 2 * count_ + rows);
    out_.offset.resize(room);
    out_.length.resize(room);
  }

  void look_for_content(std::span<const std::byte> piece) {
    blank_ = blank_ && std::all_of(piece.begin(), piece.end(), is_blank);
  }

  // Add the open line, which ends at `end`, if it is not blank.
  void add_line(std::uint64_t end) {
    const std::uint64_t carriage_return = last_ == std::byte{'\r'} ? 1 : 0;
    out_.offset[count_] = static_cast<std::int64_t>(start_);
    out_.length[count_] = static_cast<std::int64_t>(end - start_ - carriage_return);
    count_ += blank_ ? 0 : 1;
  }

  std::uint64_t start_;  // of the open line
  bool blank_ = true;    // the open line has blanks only, so far
  bool dense_ = true;    // the last part had many newlines
  std::byte last_{};     // before the place that was reached
  std::size_t count_ = 0;
  ColumnGrowth growth_;
  Walk& out_;
  std::unique_ptr<std::uint32_t[]> newlines_ =
      std::make_unique_for_overwrite<std::uint32_t[]>(part_bytes + 1);
};

}  // namespace

std::vector<NewlineFinder> list_newline_finders() {
  std::vector<NewlineFinder> finders;
#if defined(__x86_64__)
  if (processor().avx2 && processor().bmi)
    finders.push_back({"avx2", find_newlines_avx2});
#endif
  finders.push_back({"portable", find_newlines_by_memchr});
  return finders;
}

Walk walk(Source& source, const ReadPolicy& policy) {
  Walk found;
  BufferedReader reader(source, policy);
  std::uint64_t at = 0;
  if (const std::byte* head = reader.view(0, std::min<std::size_t>(byte_order_mark.size(), source.size));
      head != nullptr && source.size >= byte_order_mark.size() &&
      std::equal(byte_order_mark.begin(), byte_order_mark.end(), head))
    at = byte_order_mark.size();
  LineBuilder lines(at, source.size, found);
  while (at < source.size) {
    const auto block = reader.view_some(at, source.size - at);
    if (block.empty()) {
      found.read_error = reader.error();
      if (found.read_error == 0) found.parse_error = reader.describe_truncation(at);
      break;
    }
    for (std::size_t done = 0; done < block.size(); done += part_bytes)
      lines.take(at + done, block.subspan(done, std::min(part_bytes, block.size() - done)));
    at += block.size();
  }
  lines.finish(at);
  return found;
}

}  // namespace penstock::jsonl

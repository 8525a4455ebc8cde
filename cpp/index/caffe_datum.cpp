#include "index/caffe_datum.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <numeric>
#include <span>
#include <utility>

#include "ground/parallel.hpp"

namespace penstock::lmdb {
namespace {

constexpr std::size_t values_at_once = 1024;
constexpr std::uint64_t read_ahead_bytes = 1 << 20;
constexpr std::uint64_t peek_bytes = 256;  // of a value too large to be read whole

// The part of the file that was read ahead.
class ReadAhead {
 public:
  // At least `least` bytes from `offset` on; fewer only at the end of the file or if `error` is
  // set. If they were not read yet, `ahead` bytes are read.
  std::span<const std::byte> view(Source& source, std::uint64_t offset, std::uint64_t least,
                                  std::uint64_t ahead) {
    if (offset < start_ || offset + least > start_ + filled_) {
      const std::uint64_t wanted = std::max(least, ahead);
      if (bytes_.size() < wanted) bytes_.resize(wanted);
      const std::int64_t got = source.read(offset, {bytes_.data(), wanted});
      start_ = offset;
      filled_ = got < 0 ? 0 : static_cast<std::uint64_t>(got);
      if (got < 0) error = static_cast<int>(-got);
    }
    return std::span<const std::byte>(bytes_).subspan(offset - start_, start_ + filled_ - offset);
  }

  int error = 0;

 private:
  std::vector<std::byte> bytes_;
  std::uint64_t start_ = 0, filled_ = 0;
};

struct Datum {
  std::uint64_t offset = 0, length = 0;  // of the data
  std::int64_t label = 0;
  std::uint64_t shape[3] = {0, 0, 0};
  bool data = false, labelled = false, encoded = false, floats = false;
};

// Parser of one message, which skips long fields. Each number and tag has at most ten bytes.
class Parser {
 public:
  Parser(Source& source, ReadAhead& nearby, std::uint64_t begin, std::uint64_t end)
      : source_(source), nearby_(nearby), at_(begin), end_(end) {}

  // Parse the message; return a description of its damage, or null.
  const char* parse(Datum& found) {
    while (at_ < end_) {
      std::uint64_t tag = 0, value = 0;
      if (!read_varint(tag)) return "a tag is cut off";
      const std::uint64_t field = tag >> 3;
      switch (tag & 7) {
        case 0:
          if (!read_varint(value)) return "a number is cut off";
          if (field >= 1 && field <= 3) found.shape[field - 1] = value;
          if (field == 5) {
            found.label = static_cast<std::int64_t>(value);
            found.labelled = true;
          }
          if (field == 7) found.encoded = value != 0;
          break;
        case 2:
          if (!read_varint(value)) return "a length is cut off";
          if (value > end_ - at_) return "a field is longer than the value";
          if (field == 4) {
            found.data = true;
            found.offset = at_;
            found.length = value;
          }
          if (field == 6) found.floats = true;
          at_ += value;
          break;
        case 1:
        case 5: {
          const std::uint64_t width = (tag & 7) == 1 ? 8 : 4;
          if (width > end_ - at_) return "a field is longer than the value";
          if (field == 6) found.floats = true;
          at_ += width;
          break;
        }
        default:
          return "a field is of no known kind";
      }
      if (field == 0) return "a field has the number 0";
    }
    return nullptr;
  }

 private:
  bool read_varint(std::uint64_t& value) {
    const std::uint64_t least = std::min<std::uint64_t>(10, end_ - at_);
    const auto bytes = nearby_.view(source_, at_, least, std::min(peek_bytes, end_ - at_));
    value = 0;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(least, bytes.size()); ++i) {
      const auto byte = static_cast<std::uint64_t>(bytes[i]);
      value |= (byte & 0x7f) << (7 * i);
      if ((byte & 0x80) == 0) {
        at_ += i + 1;
        return true;
      }
    }
    return false;
  }

  Source& source_;
  ReadAhead& nearby_;
  std::uint64_t at_, end_;
};

}  // namespace

void parse_datums(Source& source, bool concurrent, unsigned threads, Walk& walk) {
  const std::size_t count = walk.offset.size;
  walk.label = Column<std::int64_t>(count);
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::uint64_t a, std::uint64_t b) { return walk.offset[a] < walk.offset[b]; });
  // Values up to this size, and this near each other, are read whole and together.
  const std::int64_t small = concurrent ? 16 << 10 : 512 << 10, gap = small;
  std::atomic<bool> labelled{false}, raw{true};
  std::vector<Datum> firsts((count + values_at_once - 1) / values_at_once);
  JobErrors job_errors;
  const auto work = [&](std::size_t job, ReadAhead& nearby) {
    const std::size_t stop = std::min(count, (job + 1) * values_at_once);
    std::int64_t known = 0;  // end of the range in which near values were searched
    for (std::size_t i = job * values_at_once; i < stop; ++i) {
      const std::uint64_t row = order[i];
      const std::int64_t offset = walk.offset[row], length = walk.length[row];
      if (offset >= known && length <= small) {
        std::int64_t end = offset + length;
        for (std::size_t j = i + 1; j < stop; ++j) {
          const std::int64_t next = walk.offset[order[j]], bytes = walk.length[order[j]];
          if (bytes > small || next - end > gap ||
              next + bytes - offset > static_cast<std::int64_t>(read_ahead_bytes))
            break;
          end = std::max(end, next + bytes);
        }
        known = end;
        const auto bytes = static_cast<std::uint64_t>(end - offset);
        nearby.view(source, static_cast<std::uint64_t>(offset), bytes, bytes);
      }
      Datum datum;
      Parser parser(source, nearby, static_cast<std::uint64_t>(offset),
                    static_cast<std::uint64_t>(offset + length));
      const char* damage = parser.parse(datum);
      if (nearby.error != 0) return job_errors.report(job, nearby.error);
      if (damage == nullptr && !datum.data)
        damage = datum.floats ? "its pixels are float_data, and only field data is read"
                            : "it has no field data";
      if (damage != nullptr)
        return job_errors.report(
            job, {static_cast<std::uint64_t>(offset),
                  std::string("the value is no Caffe Datum: ") + damage + ": leave datum= out"});
      walk.offset[row] = static_cast<std::int64_t>(datum.offset);
      walk.length[row] = static_cast<std::int64_t>(datum.length);
      walk.label[row] = datum.label;
      if (datum.labelled) labelled.store(true, std::memory_order_relaxed);
      const auto [c, h, w] = datum.shape;
      const std::uint64_t most = std::uint64_t{1} << 32;
      bool same = !datum.encoded && c > 0 && h > 0 && w > 0 && c < most && h < most && w < most &&
                  c * h <= datum.length && datum.length / (c * h) == w &&
                  datum.length % (c * h) == 0;
      if (i % values_at_once == 0) firsts[job] = datum;
      same = same && std::equal(datum.shape, datum.shape + 3, firsts[job].shape);
      if (!same) raw.store(false, std::memory_order_relaxed);
    }
  };
  in_parallel<ReadAhead>(firsts.size(), threads, job_errors, work);
  if (job_errors.has_any()) {
    walk.parse_error = std::move(job_errors.parse_error);
    walk.read_error = job_errors.read_error;
    return;
  }
  walk.labelled = labelled;
  bool same = raw && count > 0;
  for (const Datum& first : firsts)
    same = same && std::equal(first.shape, first.shape + 3, firsts[0].shape);
  if (same) std::copy(firsts[0].shape, firsts[0].shape + 3, walk.shape);
}

}  // namespace penstock::lmdb

#include "index/mp4_boxes.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "ground/limits.hpp"

namespace penstock::mp4 {
namespace {

constexpr unsigned depth_max = 8;

// Boxes that hold boxes, each once.
bool holds_boxes(Kind kind) {
  return kind == kind_of("edts") || kind == kind_of("mdia") || kind == kind_of("minf") ||
         kind == kind_of("stbl") || kind == kind_of("mvex");
}

// Boxes without boxes that are read. Others are not kept: a file may have very many.
bool is_read(Kind kind) {
  constexpr Kind kinds[] = {kind_of("mvhd"), kind_of("tkhd"), kind_of("mdhd"), kind_of("hdlr"),
                            kind_of("elst"), kind_of("stsd"), kind_of("stsz"), kind_of("stsc"),
                            kind_of("stco"), kind_of("co64"), kind_of("stts"), kind_of("ctts"),
                            kind_of("stss"), kind_of("tfhd"), kind_of("tfdt")};
  return std::ranges::find(kinds, kind) != std::end(kinds);
}

void list_into(Tree& below, const Box& box, unsigned depth, BoxCount& count) {
  if (depth > depth_max) throw box.flaw("boxes in boxes without end");
  Boxes boxes(box.bytes, box.body, count);
  while (const auto one = boxes.next()) {
    if (one->kind == kind_of("trak") || one->kind == kind_of("traf")) {
      Tree inside{*one, {}, {}};
      list_into(inside, *one, depth + 1, count);
      below.several.push_back(std::move(inside));
    } else if (one->kind == kind_of("trun") || one->kind == kind_of("trex")) {
      below.several.push_back({*one, {}, {}});
    } else if (holds_boxes(one->kind)) {
      list_into(below, *one, depth + 1, count);  // QuickTime has an inner 'hdlr' as well: the first counts
    } else if (is_read(one->kind) && below.find(one->kind) == nullptr) {
      below.leaves.push_back(*one);
    }
  }
}

}  // namespace

std::string quote(Kind kind) {
  std::string text = "'";
  for (int shift = 24; shift >= 0; shift -= 8) {
    const unsigned c = kind >> shift & 0xff;
    char escaped[5];
    std::snprintf(escaped, sizeof escaped, c >= 0x20 && c < 0x7f ? "%c" : "\\x%02x", c);
    text += escaped;
  }
  return text + "'";
}

std::string with_commas(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string with_commas(std::int64_t number) {
  std::string text = number < 0 ? "-" : "";
  const auto size = static_cast<std::uint64_t>(number);
  return text += with_commas(number < 0 ? 0 - size : size);
}

const std::byte* Box::table(std::size_t at, std::uint64_t count, std::size_t row_bytes) const {
  if (at > bytes.size() || count > (bytes.size() - at) / row_bytes)
    throw flaw("a table of " + with_commas(count) + " entries in " + with_commas(std::uint64_t{bytes.size()}) +
               " bytes");
  return bytes.data() + at;
}

ParseError Box::flaw(const std::string& what) const {
  return {start, "box " + quote(kind) + ": " + what + ": the file is damaged"};
}

void BoxCount::add(std::uint64_t offset) {
  if (++count > limits::film_boxes_max)
    throw ParseError{offset, "more than " + with_commas(std::uint64_t{limits::film_boxes_max}) +
                                 " boxes: write the film again, in fewer fragments"};
}

Head parse_head(const std::byte* bytes, std::uint64_t offset, std::uint64_t left) {
  Head head{big_u32_at(bytes + 4), head_bytes_min, big_u32_at(bytes)};
  if (head.size == 1 && left >= head_bytes_max) {
    head.size = big_u64_at(bytes + 8);
    head.head_bytes = head_bytes_max;
  } else if (head.size == 0) {
    head.size = left;
  }
  if (head.size < head.head_bytes || head.size > left)
    throw ParseError{offset, "a box " + quote(head.kind) + " of " + with_commas(head.size) + " bytes, and " +
                                 with_commas(left) + " are left: the file is cut or damaged"};
  return head;
}

std::optional<Box> Boxes::next() {
  if (bytes_.size() < head_bytes_min) return std::nullopt;
  count_.add(offset_);
  const Head head = parse_head(bytes_.data(), offset_, bytes_.size());
  const Box box{head.kind, offset_, offset_ + head.head_bytes,
                bytes_.subspan(head.head_bytes, head.size - head.head_bytes)};
  bytes_ = bytes_.subspan(head.size);
  offset_ += head.size;
  return box;
}

const Box* Tree::find(Kind kind) const {
  for (const Box& one : leaves)
    if (one.kind == kind) return &one;
  return nullptr;
}

const Box& Tree::take(Kind kind, const Box& owner) const {
  const Box* found = find(kind);
  if (found == nullptr) throw owner.flaw("its track has no " + quote(kind));
  return *found;
}

Tree list_below(const Box& box, BoxCount& count) {
  Tree below{box, {}, {}};
  list_into(below, box, 0, count);
  return below;
}

}  // namespace penstock::mp4

#include "index/walk_mp4.hpp"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "ground/limits.hpp"
#include "index/mp4_frames.hpp"

namespace penstock::mp4 {
namespace {

constexpr std::uint64_t probed_bytes = 512;  // read at a box of a file, which may be all of a small one
// Read behind the pictures, where the header probably is if it is not before them.
constexpr std::uint64_t tail_bytes = 64 << 10;
constexpr std::uint64_t entry_bytes = 78;        // of a video sample entry, behind its type
constexpr std::uint64_t sound_entry_bytes = 28;  // of one of sound; QuickTime's own have more

struct ReadFailure {
  int error;
};

// The types that the first box of a file may have.
constexpr std::array first_kinds{
    kind_of("ftyp"), kind_of("moov"), kind_of("mdat"), kind_of("free"), kind_of("skip"),
    kind_of("wide"), kind_of("pnot"), kind_of("styp"), kind_of("moof"), kind_of("sidx")};

struct Coding {
  Kind entry;
  const char* name;  // of the codec
  Kind config;       // box with what its decoder needs to know; 0: none
};

// Of the object types of MPEG-4, see `name_object`.
constexpr std::array codings{
    Coding{kind_of("avc1"), "h264", kind_of("avcC")}, Coding{kind_of("avc3"), "h264", kind_of("avcC")},
    Coding{kind_of("hvc1"), "hevc", kind_of("hvcC")}, Coding{kind_of("hev1"), "hevc", kind_of("hvcC")},
    Coding{kind_of("av01"), "av1", kind_of("av1C")},  Coding{kind_of("vp09"), "vp9", 0},
    Coding{kind_of("vp08"), "vp8", 0},                Coding{kind_of("mp4v"), "", kind_of("esds")},
    Coding{kind_of("jpeg"), "mjpeg", 0},              Coding{kind_of("mjpa"), "mjpeg", 0}};

constexpr std::array sound_codings{
    Coding{kind_of("mp4a"), "", kind_of("esds")}, Coding{kind_of("alac"), "alac", kind_of("alac")},
    Coding{kind_of("Opus"), "opus", kind_of("dOps")}, Coding{kind_of(".mp3"), "mp3", 0}};

std::string name_object(std::uint8_t kind, bool sound) {
  if (sound) return kind == 0x40 || (kind >= 0x66 && kind < 0x69) ? "aac" : kind == 0x69 || kind == 0x6b ? "mp3" : "";
  if (kind == 0x20) return "mpeg4";
  if (kind == 0x6c) return "mjpeg";
  return kind >= 0x60 && kind < 0x66 ? "mpeg2video" : "";
}

// Read the descriptors of MPEG-4: the codec, and what its decoder is given.
void read_descriptors(Walk& walk, const Box& box, bool sound) {
  const auto data = box.bytes;
  const auto byte = [&](std::size_t at) {
    return at < data.size() ? std::to_integer<std::uint32_t>(data[at]) : 0;
  };
  std::size_t at = 4;
  while (at + 2 <= data.size()) {
    const std::uint32_t tag = byte(at++);
    std::size_t size = 0;
    for (bool more = true; more && at < data.size(); ++at) {
      size = (size << 7 | (byte(at) & 0x7f)) & 0xfffffff;
      more = byte(at) & 0x80;
    }
    if (tag == 3) {  // an elementary stream: its number and flags, then descriptors
      const std::uint32_t flags = byte(at + 2);
      at += 3 + (flags & 0x80 ? 2 : 0) + (flags & 0x20 ? 2 : 0);
    } else if (tag == 4) {  // a decoder: the type of object, then descriptors
      walk.codec = name_object(static_cast<std::uint8_t>(byte(at)), sound);
      at += 13;
    } else {
      if (tag == 5 && at < data.size()) {
        const auto config = data.subspan(at, std::min(size, data.size() - at));
        walk.config.assign(reinterpret_cast<const char*>(config.data()), config.size());
      }
      at += size;
    }
  }
  if (walk.codec.empty())
    throw ParseError{box.start, "its codec is not read: re-encode it"};
}

// Find the box with what the decoder needs to know, which QuickTime has in a box 'wave'.
Box find_config(const Box& entry, std::size_t skipped, Kind wanted, BoxCount& boxes) {
  skipped = std::min(skipped, entry.bytes.size());
  std::optional<Boxes> inside(std::in_place, entry.bytes.subspan(skipped), entry.body + skipped, boxes);
  std::optional<Box> config;
  while (const auto one = inside->next()) {
    if (one->kind == wanted && !config) config = one;
    if (one->kind == kind_of("wave")) inside.emplace(one->bytes, one->body, boxes);
  }
  if (!config) throw entry.flaw("no " + quote(wanted));
  if (config->bytes.size() > limits::header_bytes_max) throw config->flaw("too large");
  return *config;
}

// Read the sample entry: the codec, what its decoder is given, and the size of a frame; or channels.
void read_entry(Walk& walk, const Box& box, BoxCount& boxes, bool sound) {
  if (const std::uint32_t count = box.u32(4); count != 1)
    throw ParseError{box.start, "its frames are of " + with_commas(std::uint64_t{count}) +
                                    " kinds, of which one is read: re-encode it"};
  const auto entry = Boxes(box.bytes.subspan(8), box.body + 8, boxes).next();
  if (!entry) throw box.flaw("no entry");
  std::size_t skipped = entry_bytes;
  if (sound) {
    const std::uint32_t version = entry->u32(8) >> 16;
    skipped = sound_entry_bytes + (version == 1 ? 16 : version == 2 ? 36 : 0);
    walk.channels = entry->u32(16) >> 16;
  } else {
    const std::uint32_t size = entry->u32(24);
    walk.width = size >> 16;
    walk.height = size & 0xffff;
    if (walk.width == 0 || walk.height == 0 ||
        std::uint64_t{walk.width} * walk.height > limits::image_pixels_max)
      throw entry->flaw("frames of " + std::to_string(walk.width) + " x " + std::to_string(walk.height));
  }
  const std::span<const Coding> known = sound ? std::span<const Coding>(sound_codings) : codings;
  const auto coding = std::find_if(known.begin(), known.end(),
                                   [&](const Coding& one) { return one.entry == entry->kind; });
  if (coding == known.end())
    throw ParseError{entry->start,
                     (sound ? "sound is encoded as " : "frames are encoded as ") + quote(entry->kind) +
                         (sound ? "; AAC, ALAC, MP3 and Opus are read: re-encode it"
                                : "; av1, h264, hevc, mjpeg, vp8, vp9 and mpeg4 are read: re-encode the "
                                  "film")};
  walk.codec = coding->name;
  if (coding->config == 0) return;
  const Box config = find_config(*entry, skipped, coding->config, boxes);
  if (coding->config == kind_of("esds")) return read_descriptors(walk, config, sound);
  walk.config.assign(reinterpret_cast<const char*>(config.bytes.data()), config.bytes.size());
}

// Read the ticks of a second.
std::uint32_t read_clock(const Box& box) {
  const std::uint32_t scale = box.u32(box.u8(0) != 0 ? 20 : 12);
  if (scale == 0 || scale >= 1u << 31)
    throw box.flaw("a second of " + with_commas(std::uint64_t{scale}) + " ticks");
  return scale;
}

// Read the quarter turns of the matrix at a byte of a box: of a scale it makes none, nor of a mirror.
unsigned read_turns(const Box& box, std::size_t at) {
  if (box.u8(0) != 0) at += 12;  // three times of eight bytes in place of four
  if (at + 20 > box.bytes.size()) return 0;
  const std::int32_t a = box.i32(at), b = box.i32(at + 4), c = box.i32(at + 12), d = box.i32(at + 16);
  if (b == 0 && c == 0) return a < 0 && d < 0 ? 2 : 0;
  if (a != 0 || d != 0) return 0;
  return b > 0 && c < 0 ? 1 : b < 0 && c > 0 ? 3 : 0;
}

// Find the first track of a kind that is enabled, or else the first, and its number.
std::pair<const Tree*, std::uint32_t> find_track(const Tree& movie, bool sound) {
  std::pair<const Tree*, std::uint32_t> found{nullptr, 0};
  bool enabled = false;
  std::string kinds;
  for (const Tree& track : movie.several) {
    if (track.box.kind != kind_of("trak")) continue;
    const Kind kind = track.take(kind_of("hdlr"), track.box).u32(8);
    if (kinds.size() < 80) kinds += (kinds.empty() ? "tracks of " : ", ") + quote(kind);
    if (kind != (sound ? kind_of("soun") : kind_of("vide"))) continue;
    const Box& head = track.take(kind_of("tkhd"), track.box);
    const std::uint32_t flags = head.u32(0);
    const std::uint32_t number = head.u32(flags >> 24 != 0 ? 20 : 12);
    if (found.first != nullptr && (enabled || (flags & 1) == 0)) continue;
    found = {&track, number};
    enabled = flags & 1;
  }
  if (found.first == nullptr)
    throw ParseError{movie.box.start, (kinds.empty() ? "no tracks" : kinds) +
                                          ", and none of " +
                                          (sound ? "sound" : "video") + ": leave the file out"};
  return found;
}

class Walker {
 public:
  Walker(Source& source, bool one_group, bool sound)
      : source_(source), one_group_(one_group || sound), sound_(sound) {}

  Walk run() {
    try {
      scan();
    } catch (const ParseError& flaw) {
      found_.parse_error = flaw;
    } catch (const ReadFailure& failure) {
      found_.read_error = failure.error;
    }
    return std::move(found_);
  }

 private:
  // Walk the boxes of the file: the tables are in `moov`, and those of fragments in each `moof`.
  void scan() {
    bool behind_pictures = false;
    std::optional<std::uint64_t> fragment;
    for (std::uint64_t at = 0; source_.size - at >= head_bytes_min;) {
      boxes_.add(at);
      const std::uint64_t left = source_.size - at;
      const std::uint64_t head_bytes = std::min(head_bytes_max, left);
      if (!has(at, head_bytes))
        load(at, std::min(left, behind_pictures && !track_ ? tail_bytes : probed_bytes));
      if (const Kind kind = big_u32_at(&bytes_[at - start_ + 4]);
          at == 0 && std::ranges::find(first_kinds, kind) == first_kinds.end())
        throw ParseError{0, "it begins with " + quote(kind) + ", as no MP4 or MOV does"};
      const Head head = parse_head(&bytes_[at - start_], at, left);
      if (head.kind == kind_of("moov") && !track_) {
        if (fragment) throw ParseError{*fragment, "a fragment before 'moov', which describes it"};
        load_box(at, head);
        header_.assign(&bytes_[at - start_], &bytes_[at - start_] + head.size);
        movie_ = list_below(view(header_.data(), at, head), boxes_);
        std::tie(track_, number_) = find_track(movie_, sound_);
        defaults_ = read_defaults(movie_);
      } else if (head.kind == kind_of("moof")) {
        fragment = at;
        if (track_) {
          read_track();
          load_box(at, head);
          const Box box = view(&bytes_[at - start_], at, head);
          add_fragment(packets_, list_below(box, boxes_), defaults_, number_, source_.size);
        }
      }
      behind_pictures = head.kind == kind_of("mdat");
      at += head.size;
    }
    if (!track_)
      throw ParseError{0, "it has no 'moov', which lists its frames: its recording was not finished; "
                          "record it again, or repair it"};
    read_track();
    if (packets_.size.empty()) throw movie_.box.flaw("the track has no frames");
    check_packets(packets_, movie_.box, source_.size);
    if (one_group_) packets_.keys.resize(1);
    edit_.cuts = packets_.size.size() == in_tables_;
    if (sound_) {  // what is not heard brings the decoder into its state
      if (edit_.cuts) std::tie(found_.start, found_.stop) = std::tie(edit_.start, edit_.stop);
      edit_.cuts = false;
      packets_.keys[0] = 0;
      packets_.delay.assign(packets_.size.size(), 0);
      if (!std::ranges::is_sorted(packets_.decoded))
        throw movie_.box.flaw("fragments of its sound go back in time");
    }
    lay_out(found_, packets_, edit_, movie_.box);
  }

  static Box view(const std::byte* bytes, std::uint64_t at, const Head& head) {
    return {head.kind, at, at + head.head_bytes, {bytes + head.head_bytes, bytes + head.size}};
  }

  // Read the tables of the track: behind the scan if there are no fragments, since what a cut file
  // lacks is seen there.
  void read_track() {
    if (found_.scale != 0) return;
    read_entry(found_, track_->take(kind_of("stsd"), movie_.box), boxes_, sound_);
    found_.scale = read_clock(track_->take(kind_of("mdhd"), movie_.box));
    add_tables(packets_, *track_, movie_.box, source_.size);
    in_tables_ = packets_.size.size();
    const Box* clock = movie_.find(kind_of("mvhd"));
    found_.turns = read_turns(track_->take(kind_of("tkhd"), movie_.box), 40);
    if (clock != nullptr) found_.turns = (found_.turns + read_turns(*clock, 36)) % 4;
    const Box* list = track_->find(kind_of("elst"));
    if (list == nullptr) return;
    if (clock == nullptr) throw list->flaw("no 'mvhd', whose ticks it counts");
    edit_ = read_edit(*list, read_clock(*clock), found_.scale);
  }

  bool has(std::uint64_t at, std::uint64_t length) const {
    return at >= start_ && length <= bytes_.size() && at - start_ <= bytes_.size() - length;
  }

  // Read all of a box, and the heads of some that follow.
  void load_box(std::uint64_t at, const Head& head) {
    if (head.size > limits::film_header_bytes_max)
      throw ParseError{at, "a box " + quote(head.kind) + " of " + with_commas(head.size) + " bytes, of " +
                               with_commas(limits::film_header_bytes_max) + " at most: cut the film"};
    if (!has(at, head.size))
      load(at, std::min(head.size + 2 * head_bytes_max, source_.size - at));
  }

  void load(std::uint64_t at, std::uint64_t length) {
    bytes_.resize(length);
    start_ = at;
    const std::int64_t n = source_.read(at, bytes_);
    if (n < 0) throw ReadFailure{static_cast<int>(-n)};
    if (static_cast<std::uint64_t>(n) < length)
      throw ParseError{at, "the file ends within a box: copy it again"};
  }

  Source& source_;
  bool one_group_, sound_;
  Walk found_;
  BoxCount boxes_;
  std::uint64_t start_ = 0;  // of the bytes of the file that were read last
  std::vector<std::byte> bytes_, header_;
  Tree movie_;
  AllDefaults defaults_;
  const Tree* track_ = nullptr;
  std::uint32_t number_ = 0;
  Edit edit_;
  Packets packets_;
  std::size_t in_tables_ = 0;
};

}  // namespace

Walk walk(Source& source, bool one_group, bool sound) { return Walker(source, one_group, sound).run(); }

}  // namespace penstock::mp4

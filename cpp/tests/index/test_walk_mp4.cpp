// Films written box by box: tables, fragments, edit lists, every cut and every changed byte.
#include "index/walk_mp4.hpp"

#include <string>
#include <string_view>

#include "tests/support/check.hpp"
#include "tests/support/memory_source.hpp"

using penstock::MemorySource;
namespace mp4 = penstock::mp4;

namespace {

using Column = std::vector<std::int64_t>;

std::string big(std::uint64_t v, int bytes = 4) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(v >> (8 * i));
  return out;
}

std::string words(std::initializer_list<std::uint64_t> values) {
  std::string out;
  for (const std::uint64_t v : values) out += big(v & 0xffffffff);
  return out;
}

std::string box(const char* kind, const std::string& content) {
  return big(8 + content.size()) + kind + content;
}

const std::string entry = box("vp09", std::string(24, '\0') + big(64, 2) + big(48, 2) + std::string(50, '\0'));
const std::string ftyp = box("ftyp", "isom");

// A track of these tables: 1,000 ticks a second.
std::string track(const std::string& tables, const std::string& kind = "vide", unsigned enabled = 1,
                  const std::string& edits = "") {
  return box("trak",
             box("tkhd", words({enabled, 0, 0, 7, 0})) + edits +
                 box("mdia", box("mdhd", words({0, 0, 0, 1000, 0})) + box("hdlr", words({0, 0}) + kind) +
                                 box("minf", box("stbl", box("stsd", words({0, 1}) + entry) + tables))));
}

// Six packets of 10 bytes in chunks of four and two: I B P, I B P as decoded, with delays.
std::string tables(std::uint64_t first, std::uint64_t second) {
  return box("stsz", words({0, 10, 6})) + box("stsc", words({0, 2, 1, 4, 1, 2, 2, 1})) +
         box("stco", words({0, 2, first, second})) + box("stts", words({0, 1, 6, 40})) +
         box("ctts", words({0, 6, 1, 40, 1, 80, 1, 0, 1, 40, 1, 80, 1, 0})) +
         box("stss", words({0, 2, 1, 4}));
}

std::string film(const std::string& inside) {
  const std::string pictures = box("mdat", std::string(100, 'x'));
  return ftyp + box("moov", box("mvhd", words({0, 0, 0, 600, 0})) + inside) + pictures;
}

// The film of `make(start of its pictures)`.
template <typename Make>
std::string placed(const Make& make) {
  const auto start = film(make(0)).size() - 100;
  return film(make(start));
}

mp4::Walk walk(std::string_view bytes, bool one_group = false, bool sound = false) {
  MemorySource source(bytes);
  return mp4::walk(source, one_group, sound);
}

bool says(const mp4::Walk& found, const std::string& what) {
  if (found.parse_error && found.parse_error->message.find(what) != std::string::npos) return true;
  std::fprintf(stderr, "%s\n", found.parse_error ? found.parse_error->message.c_str() : "no error");
  return false;
}

void tables_give_frames_in_the_sequence_shown() {
  std::uint64_t start = 0;
  const std::string bytes = placed([&](std::uint64_t at) {
    start = at;
    return track(tables(at, at + 60));
  });
  const auto at = static_cast<std::int64_t>(start);
  const auto found = walk(bytes);
  CHECK(!found.parse_error);
  CHECK(found.codec == "vp9" && found.width == 64 && found.height == 48 && found.scale == 1000);
  CHECK((found.shift == std::vector<std::int16_t>{0, 1, -1, 0, 1, -1}));
  CHECK((found.frames == Column{3, 3}) && (found.place == Column{0, 3}));
  CHECK((found.first_packet == Column{0, 3}) && (found.last_packet == Column{2, 5}));
  CHECK((found.pieces == Column{1, 2}));
  CHECK((found.offset == Column{at, at + 30, at + 60}) && (found.length == Column{30, 10, 20}));
  CHECK((found.times == Column{0, 40, 40}) && found.end == 280);
  const auto whole = walk(bytes, true);
  CHECK((whole.frames == Column{6}) && (whole.offset == Column{at, at + 60}));
}

void rotated_films_say_how_to_turn_frames() {
  constexpr std::uint32_t one = 1 << 16, minus = 0xffff0000;
  const auto turns = [](std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d, bool wide) {
    const std::string head = wide ? words({1 << 24 | 1, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0})
                                  : words({1, 0, 0, 7, 0, 0, 0, 0, 0, 0});
    return walk(placed([&](std::uint64_t at) {
             std::string inside = track(tables(at, at + 40));
             const std::string short_head = box("tkhd", words({1, 0, 0, 7, 0}));
             const std::string full = box("tkhd", head + words({a, b, 0, c, d, 0, 0, 0, 1 << 30}));
             inside.replace(8, short_head.size(), full);
             return inside.replace(0, 4, big(inside.size()));
           })).turns;
  };
  for (const bool wide : {false, true}) {
    CHECK(turns(one, 0, 0, one, wide) == 0 && turns(0, one, minus, 0, wide) == 1);
    CHECK(turns(minus, 0, 0, minus, wide) == 2 && turns(0, minus, one, 0, wide) == 3);
    CHECK(turns(minus, 0, 0, one, wide) == 0 && turns(one, 9, 9, one, wide) == 0);
  }
}

void the_first_enabled_video_track_is_read() {
  const std::string bytes = placed([](std::uint64_t at) {
    return track("", "soun") + track("", "vide", 0) + track(tables(at, at + 40));
  });
  CHECK(walk(bytes).frames.size() == 2);
  CHECK(says(walk(film(track("", "soun"))), "tracks of 'soun', and none of video"));
}

void sound_is_one_group_with_what_its_edit_list_leaves_out() {
  const std::string edits = box("edts", box("elst", words({0, 1, 90, 50, 1 << 16})));
  std::string bytes = placed([&](std::uint64_t at) {
    return track(tables(at, at + 60)) + track(tables(at, at + 40), "soun", 1, edits);
  });
  CHECK(says(walk(bytes, false, true), "sound is encoded as 'vp09'"));
  bytes.replace(bytes.rfind("vp09"), 4, ".mp3");
  const auto found = walk(bytes, false, true);
  CHECK(!found.parse_error && found.codec == "mp3" && found.width == 0);
  CHECK((found.frames == Column{6}) && (found.first_packet == Column{0}) && (found.pieces == Column{1}));
  CHECK(found.start == 50 && found.stop == 200);
  CHECK(!walk(bytes).parse_error && walk(bytes).codec == "vp9");
  CHECK(says(walk(film(track(tables(0, 60))), false, true), "tracks of 'vide', and none of sound"));
}

void edit_lists_cut_and_move() {
  const auto shown = [](const std::string& rows, std::uint64_t count) {
    return walk(placed([&](std::uint64_t at) {
      const std::string edits = box("edts", box("elst", words({0, count}) + rows));
      return track(tables(at, at + 40), "vide", 1, edits);
    }));
  };
  // Half a second of nothing; then from the second frame on, for three frames.
  const auto found = shown(words({300, ~0ull, 1 << 16, 72, 80, 1 << 16}), 2);
  CHECK(!found.parse_error);
  CHECK((found.frames == Column{2, 1}) && (found.place == Column{1, 3}));
  CHECK((found.times == Column{0, 500, 40}) && found.end == 620);
  CHECK(says(shown(words({72, 80, 1 << 16, 72, 160, 1 << 16}), 2), "shows several parts"));
  CHECK(says(shown(words({72, 80, 2 << 16}), 1), "at another speed"));
  CHECK(says(shown(words({72, 9000, 1 << 16}), 1), "shows none of the frames"));
  CHECK(says(shown("", 9), "a table of 9 entries in 8 bytes"));
}

std::string fragment(std::uint64_t time, const std::string& rows, std::uint64_t count,
                     unsigned track_number = 7) {
  const auto make = [&](std::uint64_t shift) {
    return box("moof", box("traf", box("tfhd", words({0x20000, track_number})) +
                                       box("tfdt", words({0, time})) +
                                       box("trun", words({0xe01, count, shift}) + rows)));
  };
  return make(make(0).size() + 8);
}

const std::string no_tables = box("stsz", words({0, 0, 0}));
const std::string defaults = box("mvex", box("trex", words({0, 7, 1, 40, 10, 0})));

void fragments_follow_what_the_tables_have() {
  const std::string two = words({10, 0, 0, 12, 1 << 16, 0}), mdat = box("mdat", std::string(22, 'x'));
  const std::string head = ftyp + box("moov", track(no_tables) + defaults);
  const std::string other = fragment(0, two, 2, 9) + mdat;  // of another track
  const std::string bytes = head + fragment(100, two, 2) + mdat + other + fragment(500, two, 2) + mdat;
  const auto found = walk(bytes);
  CHECK(!found.parse_error);
  CHECK((found.size == std::vector<std::uint32_t>{10, 12, 10, 12}));
  CHECK((found.frames == Column{2, 2}));
  CHECK((found.times == Column{0, 100, 40, 1, 140, 360, 2, 500, 40}) && found.end == 580);
  const auto part = static_cast<std::int64_t>(fragment(0, two, 2).size() + mdat.size());
  CHECK(found.offset[1] == found.offset[0] + 2 * part);
  const auto mixed = walk(placed([](std::uint64_t at) { return track(tables(at, at + 40)) + defaults; }) +
                          fragment(240, two, 2) + mdat);
  CHECK((mixed.frames == Column{3, 3, 2}) && mixed.end == 320);
  CHECK(says(walk(ftyp + fragment(0, two, 2) + box("moov", track(no_tables))), "a fragment before"));
  CHECK(says(walk(head + fragment(0, words({10, 1 << 16, 0}), 1) + mdat), "no keyframe"));
  CHECK(says(walk(head + fragment(0, two, 3) + mdat), "a table of 3 entries"));
}

void headers_alone_are_read() {
  const std::string header = box("moov", track(tables(40, 80)));
  const std::string pictures = box("mdat", std::string(1 << 20, 'x'));
  for (const std::string& bytes : {ftyp + pictures + header, ftyp + header + pictures}) {
    MemorySource source(bytes);
    CHECK(!mp4::walk(source, false).parse_error);
    CHECK(source.reads <= 2 && source.read_bytes < 512 + header.size() + 32);
  }
}

void what_a_file_lacks_is_said() {
  CHECK(says(walk(""), "it has no 'moov'"));
  CHECK(says(walk("....RIFFWAVE...."), "it begins with 'RIFF'"));
  CHECK(says(walk(big(4) + "moov...."), "of 4 bytes"));
  CHECK(says(walk(big(900) + "moov...."), "of 900 bytes, and 12 are left"));
  const std::string whole = placed([](std::uint64_t at) { return track(tables(at, at + 60)); });
  CHECK(says(walk(std::string_view(whole).substr(0, whole.size() - 9)), "'mdat' of 108 bytes, and 99 are"));
  CHECK(says(walk(film("")), "no tracks"));
  CHECK(says(walk(film(track(no_tables))), "has no frames"));
  CHECK(says(walk(film(track(tables(0, 1u << 30)))), "'stco': frames at byte 1,073,741,824"));
  CHECK(says(walk(film(track(tables(0, 550)))), "frame 5 of 6 has 10 bytes at byte 560"));
  std::string deep = box("trak", "");
  for (int n = 0; n < 20; ++n) deep = box("trak", deep);
  CHECK(says(walk(film(deep)), "boxes in boxes"));
  std::string many = ftyp;
  for (int n = 0; n < 1 << 18; ++n) many += box("free", "");
  CHECK(says(walk(many), "more than 262,144 boxes"));
  MemorySource failing(many);
  failing.error = 5;
  CHECK(mp4::walk(failing, false).read_error == 5);
}

void every_cut_and_changed_byte_is_an_error_or_stays_inside() {
  const std::string two = words({10, 0, 0, 12, 1 << 16, 0});
  const std::string edits = box("edts", box("elst", words({0, 1, 0, 40, 1 << 16})));
  const std::string bytes = placed([&](std::uint64_t at) {
    return track(tables(at, at + 40), "vide", 1, edits) + defaults;
  }) + fragment(240, two, 2) + box("mdat", std::string(22, 'x'));
  CHECK(!walk(bytes).parse_error);
  const std::size_t last = bytes.size() - 30 - fragment(0, two, 2).size();  // a film may end there
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const auto cut = walk(std::string_view(bytes).substr(0, n));
    CHECK(cut.parse_error || (n >= last && n < last + 8));
    for (const char value : {'\0', '\1', '\x7f', '\xff'}) {
      std::string changed = bytes;
      changed[n] = value;
      const auto found = walk(changed);
      if (found.parse_error) continue;
      for (std::size_t i = 0; i < found.offset.size(); ++i)
        CHECK(found.offset[i] >= 0 && found.length[i] > 0 &&
              static_cast<std::size_t>(found.offset[i] + found.length[i]) <= bytes.size());
    }
  }
}

}  // namespace

int main() {
  tables_give_frames_in_the_sequence_shown();
  rotated_films_say_how_to_turn_frames();
  the_first_enabled_video_track_is_read();
  sound_is_one_group_with_what_its_edit_list_leaves_out();
  edit_lists_cut_and_move();
  fragments_follow_what_the_tables_have();
  headers_alone_are_read();
  what_a_file_lacks_is_said();
  every_cut_and_changed_byte_is_an_error_or_stays_inside();
}

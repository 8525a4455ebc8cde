#include "codecs/packet_decoder.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "ground/little_endian.hpp"
#include "ground/processor.hpp"

namespace penstock::codecs {
namespace {

constexpr int rgb24 = 2, unspecified = 2, corrupt = 1, bilinear = 2, end_of_data = -0x20464f45;
constexpr int invalid_data = -0x41444e49;
constexpr int last_packed = 4;  // of the kinds of samples
constexpr int skip_default = 0, skip_unreferenced = 8;
constexpr std::size_t padding = 64, packet_bytes_max = 1u << 30;
constexpr std::int64_t no_pts = std::numeric_limits<std::int64_t>::min();

using Bytes = std::vector<std::byte>;

// Split a page of Ogg into the packets that end in it; `part` is the beginning that the page before
// has left. False if the page is cut.
bool split_page(std::span<const std::byte> page, Bytes& part, std::vector<Bytes>& packets) {
  packets.clear();
  if (page.size() < 27) return false;
  const auto segments = std::to_integer<std::size_t>(page[26]);
  if (page.size() < 27 + segments) return false;
  if ((page[5] & std::byte{1}) == std::byte{0}) part.clear();
  auto rest = page.subspan(27 + segments);
  for (const std::byte segment : page.subspan(27, segments)) {
    const auto size = std::to_integer<std::size_t>(segment);
    if (size > rest.size()) return false;
    part.insert(part.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(size));
    rest = rest.subspan(size);
    if (size < 255) packets.push_back(std::exchange(part, {}));
  }
  return true;
}

#if defined(__x86_64__)
constexpr auto colour_places = [] {  // of 16 pixels in three vectors, by colour: 128 is "not here"
  std::array<std::array<std::array<std::uint8_t, 16>, 3>, 3> places{};
  for (std::size_t colour = 0; colour < 3; colour++)
    for (std::size_t part = 0; part < 3; part++)
      for (std::size_t n = 0; n < 16; n++) {
        const std::size_t at = 3 * n + colour - 16 * part;
        places[colour][part][n] = static_cast<std::uint8_t>(at < 16 ? at : 128);
      }
  return places;
}();

// Write the colours of pixels to planes that are `step` bytes apart; returns how many are done.
__attribute__((target("ssse3"))) int split_vectors(const std::uint8_t* from, int width,
                                                   std::uint8_t* to, std::ptrdiff_t step) {
  const auto load = [](const std::uint8_t* at) __attribute__((target("ssse3"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  };
  int x = 0;
  for (; x + 16 <= width; x += 16, from += 48) {
    const __m128i parts[3]{load(from), load(from + 16), load(from + 32)};
    for (std::size_t colour = 0; colour < 3; colour++) {
      __m128i found = _mm_setzero_si128();
      for (std::size_t part = 0; part < 3; part++)
        found = _mm_or_si128(
            found, _mm_shuffle_epi8(parts[part], load(colour_places[colour][part].data())));
      auto* const out = to + x + static_cast<std::ptrdiff_t>(colour) * step;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), found);
    }
  }
  return x;
}
#endif

// Write the colours of a line of pixels, `steps` apart.
void split_colours(const std::uint8_t* from, int width, std::uint8_t* to, std::ptrdiff_t pixel_step,
                   std::ptrdiff_t colour_step) {
  int x = 0;
#if defined(__x86_64__)
  if (pixel_step == 1 && processor().sse42) x = split_vectors(from, width, to, colour_step);
#endif
  for (; x < width; x++)
    for (int colour = 0; colour < 3; colour++)
      to[x * pixel_step + colour * colour_step] = from[3 * x + colour];
}

template <class From, class To>
To convert_sample(From sample) {
  if constexpr (std::is_same_v<From, To> || std::is_floating_point_v<From>) {
    return static_cast<To>(sample);
  } else {
    constexpr double full = std::uint32_t{1} << (8 * sizeof(From) - 1);
    return static_cast<To>((sample - (std::is_unsigned_v<From> ? full : 0)) / full);
  }
}

template <class From, class To>
void copy_samples(const Frame& frame, std::size_t begin, std::size_t count, std::size_t channels,
                  To* to) {
  const bool is_planar = frame.format > last_packed;
  for (std::size_t channel = 0; channel < channels; channel++) {
    const From* from = reinterpret_cast<const From*>(frame.planes[is_planar ? channel : 0]);
    from += is_planar ? begin : begin * channels + channel;
    for (std::size_t n = 0; n < count; n++)
      to[n * channels + channel] = convert_sample<From, To>(from[is_planar ? n : n * channels]);
  }
}

// Copy samples as they are, or as floats; false if the memory is for others.
template <class From>
bool copy_samples(const Frame& frame, std::size_t begin, std::size_t count, const Samples& out,
                  std::byte* to) {
  const auto copy = [&]<class To>(To* typed) {
    copy_samples<From>(frame, begin, count, out.channels, typed);
    return true;
  };
  constexpr char kind = std::is_floating_point_v<From> ? 'f' : std::is_unsigned_v<From> ? 'u' : 'i';
  if (out.kind == kind && out.bytes == sizeof(From)) return copy(reinterpret_cast<From*>(to));
  if (out.kind == 'f' && out.bytes == 4) return copy(reinterpret_cast<float*>(to));
  if (out.kind == 'f' && out.bytes == 8) return copy(reinterpret_cast<double*>(to));
  return false;
}

}  // namespace

PacketDecoder::PacketDecoder(const Ffmpeg& ffmpeg, const DecoderKind& kind)
    : ffmpeg_(ffmpeg), name_(kind.name) {
  const void* codec = ffmpeg_.avcodec_find_decoder_by_name(name_.c_str());
  if (codec == nullptr) throw std::runtime_error("PyAV's FFmpeg has no decoder '" + name_ + "'");
  context_ = ffmpeg_.avcodec_alloc_context3(codec);
  Parameters* given = ffmpeg_.avcodec_parameters_alloc();
  ffmpeg_.avcodec_parameters_from_context(given, context_);
  if (const std::string& config = kind.config; !config.empty()) {
    given->extradata = static_cast<std::uint8_t*>(ffmpeg_.av_malloc(config.size() + padding));
    std::memset(given->extradata, 0, config.size() + padding);
    std::memcpy(given->extradata, config.data(), config.size());
    given->extradata_size = static_cast<int>(config.size());
  }
  int code = ffmpeg_.avcodec_parameters_to_context(context_, given);
  ffmpeg_.avcodec_parameters_free(&given);
  ffmpeg_.av_opt_set_int(context_, "threads", 1, 0);
  for (const auto& [key, value] : kind.options)
    if (code >= 0) code = ffmpeg_.av_opt_set(context_, key.c_str(), value.c_str(), 0);
  if (code >= 0) code = ffmpeg_.avcodec_open2(context_, codec, nullptr);
  packet_ = ffmpeg_.av_packet_alloc();
  frame_ = ffmpeg_.av_frame_alloc();
  scaled_ = ffmpeg_.av_frame_alloc();
  scaler_ = ffmpeg_.sws_alloc_context();
  ffmpeg_.av_opt_set_int(scaler_, "sws_flags", bilinear, 0);
  if (code >= 0) return;
  free();
  throw std::invalid_argument(describe(code));
}

PacketDecoder::~PacketDecoder() { free(); }

void PacketDecoder::free() {
  ffmpeg_.avcodec_free_context(&context_);
  ffmpeg_.av_packet_free(&packet_);
  ffmpeg_.av_frame_free(&frame_);
  ffmpeg_.av_frame_free(&scaled_);
  ffmpeg_.sws_freeContext(scaler_);
}

std::string PacketDecoder::describe(int code) const {
  char text[128];
  ffmpeg_.av_strerror(code, text, sizeof text);
  return "FFmpeg's " + name_ + " decoder says " + text;
}

int PacketDecoder::decode(std::span<const std::byte> bytes, std::int64_t row,
                          const std::function<void()>& take) {
  if (bytes.size() > packet_bytes_max) return -EINVAL;
  int code = ffmpeg_.av_new_packet(packet_, static_cast<int>(bytes.size()));
  if (code < 0) return code;
  if (!bytes.empty()) std::memcpy(packet_->data, bytes.data(), bytes.size());
  packet_->pts = row;
  code = ffmpeg_.avcodec_send_packet(context_, packet_);
  ffmpeg_.av_packet_unref(packet_);
  return code < 0 ? code : receive(take);
}

int PacketDecoder::receive(const std::function<void()>& take) {
  int code = 0;
  bool is_taken = false;
  while (code >= 0) {
    code = ffmpeg_.avcodec_receive_frame(context_, frame_);
    if (code < 0) break;
    take();
    is_taken = true;
  }
  // As PyAV: what a packet has behind a frame need not be another one.
  if (code == -EAGAIN || code == end_of_data || (code == invalid_data && is_taken)) return 0;
  return code;
}

std::string PacketDecoder::decode_pictures(const Group& group, std::span<const std::int64_t> wanted,
                                           std::span<const Picture> pictures, bool is_scaled) {
  std::string problem;
  std::vector<bool> is_there(wanted.size());
  std::size_t missing = wanted.size(), last = group.rows.size(), at = 0;
  const auto find = [&](std::int64_t row) {
    const auto place = std::lower_bound(wanted.begin(), wanted.end(), row) - wanted.begin();
    const auto found = static_cast<std::size_t>(place);
    return found < wanted.size() && wanted[found] == row ? found : wanted.size();
  };
  const std::function take = [&] {
    for (std::size_t place = find(frame_->pts); place < wanted.size() && problem.empty(); place++) {
      if (wanted[place] != frame_->pts || is_there[place]) return;
      problem = convert(pictures[place], is_scaled);
      is_there[place] = true;
      missing--;
    }
  };
  while (last > 0 && find(group.rows[last - 1]) == wanted.size()) last--;
  for (std::size_t n = 0; n <= last && missing > 0 && problem.empty(); n++) {
    int code = 0;
    if (n < last) {
      const auto size = static_cast<std::size_t>(group.sizes[n]);
      const bool skips = find(group.rows[n]) == wanted.size();
      if (size > group.data.size() - at) return "packets are cut";
      if (skips != is_skipping_)
        ffmpeg_.av_opt_set_int(context_, "skip_frame", skips ? skip_unreferenced : skip_default, 0);
      is_skipping_ = skips;
      code = decode(group.data.subspan(at, size), group.rows[n], take);
      at += size;
      if (group.rows[n] < 0) code = 0;  // it refers to frames of the group before
    } else {
      code = ffmpeg_.avcodec_send_packet(context_, nullptr);
      if (code >= 0) code = receive(take);
    }
    if (code < 0) return describe(code);
  }
  if (!problem.empty()) return problem;
  if (missing > 0) {
    const auto first = std::find(is_there.begin(), is_there.end(), false) - is_there.begin();
    return "frame " + std::to_string(wanted[static_cast<std::size_t>(first)]) +
           " of the group is not there";
  }
  ffmpeg_.avcodec_flush_buffers(context_);
  return {};
}

std::string PacketDecoder::decode_samples(const Group& group, Packing packing, std::int64_t first,
                                          const Samples& out) {
  std::string problem;
  std::int64_t at = -first;  // of the next sample, from the first one that is wanted
  std::size_t frames = 0, offset = 0;
  const auto wanted = static_cast<std::int64_t>(out.frames);
  const auto take = [&] {
    frames++;
    if (problem.empty()) problem = take_samples(at, out);
    at += frame_->samples;
  };
  const auto skip = [] {};
  Bytes part;
  std::vector<Bytes> packets;
  std::int64_t start = 0;  // what the page before the first one says
  for (std::size_t n = 0; n < group.sizes.size() && problem.empty(); n++) {
    const auto size = static_cast<std::size_t>(group.sizes[n]);
    if (size > group.data.size() - offset) return "packets are cut";
    const auto piece = group.data.subspan(offset, size);
    offset += size;
    int code = 0;
    if (packing == Packing::none) {
      code = decode(piece, no_pts, take);
      if (code >= 0 && frames != n + 1)
        return std::to_string(n + 1) + " packets give " + std::to_string(frames) +
               " pieces of sound";
    } else {
      if (!split_page(piece, part, packets)) return "a page of Ogg is cut";
      const auto told = static_cast<std::int64_t>(u64_at(piece.data() + 6));
      if (packing == Packing::primed && n == 0) {
        start = told;
        if (!packets.empty()) code = decode(packets.back(), no_pts, skip);
        packets.clear();
      }
      for (const Bytes& packet : packets)
        if (code >= 0 && at < wanted) code = decode(packet, no_pts, take);
      if (code >= 0 && at < wanted && !packets.empty() && at + first != told - start)
        return "packets give " + std::to_string(at + first) +
               " samples up to a page's end, where it says " + std::to_string(told - start);
    }
    if (code < 0) return describe(code);
    if (packing != Packing::none && at >= wanted) break;
  }
  if (problem.empty() && at < wanted)
    problem = std::to_string(at) + " samples come out of it, not " + std::to_string(wanted);
  if (problem.empty()) ffmpeg_.avcodec_flush_buffers(context_);
  return problem;
}

std::string PacketDecoder::take_samples(std::int64_t at, const Samples& out) const {
  if (frame_->channels != static_cast<int>(out.channels))
    return "samples of " + std::to_string(frame_->channels) + " channels, not " +
           std::to_string(out.channels);
  const std::int64_t begin = std::max<std::int64_t>(-at, 0);
  const std::int64_t end = std::min<std::int64_t>(frame_->samples, std::int64_t(out.frames) - at);
  if (begin >= end) return {};
  const auto from = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
  std::byte* to = out.data + static_cast<std::size_t>(at + begin) * out.channels * out.bytes;
  bool is_copied = false;
  switch (frame_->format % (last_packed + 1)) {
    case 0: is_copied = copy_samples<std::uint8_t>(*frame_, from, count, out, to); break;
    case 1: is_copied = copy_samples<std::int16_t>(*frame_, from, count, out, to); break;
    case 2: is_copied = copy_samples<std::int32_t>(*frame_, from, count, out, to); break;
    case 3: is_copied = copy_samples<float>(*frame_, from, count, out, to); break;
    case 4: is_copied = copy_samples<double>(*frame_, from, count, out, to); break;
  }
  if (is_copied && frame_->format < 2 * (last_packed + 1)) return {};
  return "the decoder gives samples of kind " + std::to_string(frame_->format) +
         ", and others were announced";
}

std::string PacketDecoder::convert(const Picture& out, bool is_scaled) {
  const auto [to, steps, height, width] = out;
  if (!is_scaled && (frame_->height != height || frame_->width != width))
    return "a frame of " + std::to_string(frame_->width) + " x " + std::to_string(frame_->height) +
           ", and the film's header says " + std::to_string(width) + " x " + std::to_string(height);
  if ((frame_->flags & corrupt) != 0 || frame_->error_flags != 0) return "a frame is damaged";
  // As `reformat` of PyAV: primaries and transfer curves are not converted.
  frame_->primaries = frame_->transfer = unspecified;
  ffmpeg_.av_frame_unref(scaled_);
  ffmpeg_.av_frame_copy_props(scaled_, frame_);
  scaled_->format = rgb24;
  scaled_->height = height;
  scaled_->width = width;
  // FFmpeg writes whole vectors: lines that are no multiple of these are converted beside.
  const bool is_direct = width % 16 == 0 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0 &&
                         steps[0] == 3 * width && steps[1] == 3 && steps[2] == 1;
  const int line = (width + 15) / 16 * 48;
  if (!is_direct)
    lines_.resize(static_cast<std::size_t>(line) * static_cast<std::size_t>(height) + padding);
  scaled_->data[0] = is_direct ? to : lines_.data();
  scaled_->linesize[0] = line;
  const int code = ffmpeg_.sws_scale_frame(scaler_, scaled_, frame_);
  if (code < 0) return describe(code);
  for (int y = 0; y < height && !is_direct; y++) {
    const std::uint8_t* const from = lines_.data() + static_cast<std::ptrdiff_t>(y) * line;
    std::uint8_t* const row = to + y * steps[0];
    if (steps[1] == 3 && steps[2] == 1)
      std::memcpy(row, from, static_cast<std::size_t>(3 * width));
    else
      split_colours(from, width, row, steps[1], steps[2]);
  }
  return {};
}

}  // namespace penstock::codecs

// Frames and samples out of packets in memory, by one of FFmpeg's decoders. Not thread-safe.
//
// Errors of data are texts, empty if there is none. After one, the decoder is in no known state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codecs/ffmpeg.hpp"

namespace penstock::codecs {

// Packets back to back, and the row that the frame of each has.
struct Group {
  std::span<const std::byte> data;
  std::span<const std::int64_t> sizes, rows;
};

// Memory of a frame, RGB: bytes from a line, pixel and colour to the next.
struct Picture {
  std::uint8_t* data;
  std::ptrdiff_t steps[3];
  int height, width;
};

// Memory of samples, channel beside channel, as numbers of the kind of numpy: u, i, f.
struct Samples {
  std::byte* data;
  std::size_t frames, channels, bytes;
  char kind;
};

// How packets come: one behind the other, in pages of Ogg, or with a page of which the last packet
// alone is given, before the first sample.
enum class Packing { none, pages, primed };

// FFmpeg's name of a decoder, the bytes that it is given, and its options.
struct DecoderKind {
  std::string name, config;
  std::vector<std::pair<std::string, std::string>> options;
  bool operator==(const DecoderKind&) const = default;
};

class PacketDecoder {
 public:
  // std::runtime_error if there is no such decoder, std::invalid_argument if it refuses the config.
  PacketDecoder(const Ffmpeg& ffmpeg, const DecoderKind& kind);
  ~PacketDecoder();
  PacketDecoder(const PacketDecoder&) = delete;
  PacketDecoder& operator=(const PacketDecoder&) = delete;

  // Decode the frames of the wanted rows, ascending, each into its picture; a row may come several
  // times. Of packets that are not wanted, those to which no others refer are skipped. Errors of
  // packets of negative rows, which refer to what is not there, are none.
  std::string decode_pictures(const Group& group, std::span<const std::int64_t> wanted,
                              std::span<const Picture> pictures, bool is_scaled);

  // Decode the samples from `first` on. Each packet gives one frame, and a page as many samples as
  // it says. Numbers of another kind become floats from -1 to 1.
  std::string decode_samples(const Group& group, Packing packing, std::int64_t first,
                             const Samples& out);

 private:
  // Give a packet, and take what comes out. FFmpeg's error, or 0.
  int decode(std::span<const std::byte> bytes, std::int64_t row, const std::function<void()>& take);
  int receive(const std::function<void()>& take);
  std::string describe(int code) const;
  std::string take_samples(std::int64_t at, const Samples& out) const;
  std::string convert(const Picture& out, bool is_scaled);
  void free();

  const Ffmpeg& ffmpeg_;
  std::string name_;
  void* context_ = nullptr;
  void* scaler_ = nullptr;
  Packet* packet_ = nullptr;
  Frame* frame_ = nullptr;
  Frame* scaled_ = nullptr;
  bool is_skipping_ = false;
  std::vector<std::uint8_t> lines_;
};

}  // namespace penstock::codecs

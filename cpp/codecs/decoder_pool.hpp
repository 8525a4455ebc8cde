// Decoders that wait for work, as opening one takes longer than decoding a short group; and the
// threads that decode the groups of a batch. Thread-safe.
//
// Batches that are decoded at once have the same threads: each takes the next group of the batch
// that came first, so that none is idle while a batch's last groups are decoded.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codecs/ffmpeg.hpp"
#include "codecs/packet_decoder.hpp"

namespace penstock::codecs {

// Memory of upright frames, and the bytes from one to the next.
struct Pictures {
  Picture first;
  std::ptrdiff_t step;
  std::int64_t frames;
};

// Groups of pictures in columns. Where a group has several of something, its share goes from its
// bound to the next one.
struct PictureGroups {
  std::span<const std::byte> data;
  std::span<const std::int64_t> bounds;  // of bytes in the data
  std::span<const std::int64_t> packet_bounds, sizes, rows;
  std::span<const std::int64_t> kinds, turns;  // turns: quarters, clockwise, that show it upright
  std::span<const std::int64_t> wanted_bounds, wanted;
  std::span<const std::int64_t> places;  // of what is wanted: a frame, counted through all memory
};

class DecoderPool {
 public:
  using Problem = std::pair<std::size_t, std::string>;  // a group, and what is wrong with it

  // module: path of a loaded module that is linked with FFmpeg's libraries.
  // idle_max: decoders that may wait; of more, the one that waited longest is dropped.
  DecoderPool(const std::string& module, std::size_t idle_max)
      : ffmpeg_(module), idle_max_(idle_max) {}

  // Decode groups; the first one that cannot be. std::runtime_error if a decoder is not there,
  // std::out_of_range if the columns do not fit.
  std::optional<Problem> decode_pictures(const PictureGroups& groups,
                                         std::span<const DecoderKind> kinds,
                                         std::span<const Pictures> memory, bool is_scaled,
                                         std::size_t threads);

  // As PacketDecoder has it.
  std::string decode_samples(const DecoderKind& kind, const Group& group, Packing packing,
                             std::int64_t first, const Samples& out);

  std::size_t count_opened() const;
  std::vector<std::string> list_idle() const;

 private:
  struct Batch;
  using Decoder = std::unique_ptr<PacketDecoder>;

  Decoder take(const DecoderKind& kind);
  void give_back(const DecoderKind& kind, Decoder decoder);
  void run(Batch& batch, std::size_t threads);
  void help(const Batch& batch, std::size_t threads);
  bool decode_next(std::unique_lock<std::mutex>& lock);

  const Ffmpeg ffmpeg_;
  const std::size_t idle_max_;
  mutable std::mutex mutex_;
  std::list<std::pair<DecoderKind, Decoder>> idle_;
  std::list<Batch*> batches_;
  std::condition_variable ended_;
  std::size_t working_ = 0, opened_ = 0;
};

}  // namespace penstock::codecs

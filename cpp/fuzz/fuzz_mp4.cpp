// Any bytes as an MP4 film, or its sound.
#include "index/walk_mp4.hpp"

#include <numeric>

#include "fuzz/require.hpp"

using namespace penstock;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes = contents(data + 1, size - 1);
  MemorySource source(bytes);
  const bool sound = (data[0] & 2) != 0;
  const mp4::Walk found = mp4::walk(source, (data[0] & 1) != 0, sound);
  require(found.read_error == 0);
  require_inside(found.parse_error, bytes.size());
  if (found.parse_error) return 0;
  require_inside(found.offset, found.length, bytes.size());
  const std::size_t groups = found.frames.size();
  const auto packets = static_cast<std::int64_t>(found.size.size());
  require(groups > 0 && !found.codec.empty() && found.scale > 0);
  require(sound ? found.width == 0 && found.start >= 0 && found.stop >= 0
                : found.width * found.height > 0);
  require(!sound || (groups == 1 && found.first_packet[0] == 0 && found.frames[0] == packets));
  require(found.first_packet.size() == groups && found.last_packet.size() == groups);
  require(found.place.size() == groups && found.pieces.size() == groups);
  std::vector<bool> shown(found.size.size());
  for (std::size_t n = 0; n < shown.size(); ++n) {
    const auto place = n + static_cast<std::size_t>(found.shift.empty() ? 0 : found.shift[n]);
    require(place < shown.size() && !shown[place]);
    shown[place] = true;
  }
  std::size_t piece = 0;
  for (std::size_t n = 0; n < groups; ++n) {
    require(found.frames[n] > 0 && found.place[n] >= 0 && found.pieces[n] > 0);
    require(n == 0 || found.place[n] == found.place[n - 1] + found.frames[n - 1]);
    require(0 <= found.first_packet[n] && found.first_packet[n] <= found.last_packet[n]);
    std::int64_t left = std::accumulate(found.size.begin() + found.first_packet[n],
                                        found.size.begin() + found.last_packet[n] + 1, std::int64_t{0});
    for (auto last = piece + static_cast<std::size_t>(found.pieces[n]); piece < last; ++piece)
      left -= found.length.at(piece);
    require(left == 0);
  }
  require(piece == found.offset.size() && found.last_packet[groups - 1] < packets);
  const std::int64_t frames = found.place[groups - 1] + found.frames[groups - 1] - found.place[0];
  require(found.place[0] + frames <= packets && found.times.size() % 3 == 0);
  for (std::size_t n = 0; n < found.times.size(); n += 3)
    require(n == 0 ? found.times[n] == 0
                   : found.times[n] > found.times[n - 3] && found.times[n] < frames);
  return 0;
}

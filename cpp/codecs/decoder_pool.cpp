#include "codecs/decoder_pool.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <tuple>

namespace penstock::codecs {
namespace {

using Ints = std::span<const std::int64_t>;

template <class T>
std::span<T> cut(std::span<T> all, Ints bounds, std::size_t group) {
  const auto from = static_cast<std::size_t>(bounds[group]);
  return all.subspan(from, static_cast<std::size_t>(bounds[group + 1]) - from);
}

bool are_bounds(Ints bounds, std::size_t groups, std::size_t size) {
  return bounds.size() == groups + 1 && bounds.front() >= 0 && std::ranges::is_sorted(bounds) &&
         bounds.back() <= static_cast<std::int64_t>(size);
}

bool are_below(Ints numbers, std::int64_t end) {
  return std::ranges::all_of(numbers, [&](auto one) { return 0 <= one && one < end; });
}

// The picture as the decoder writes it, if it is upright after some quarter turns clockwise.
Picture turn(const Picture& upright, std::int64_t turns) {
  const auto [data, steps, height, width] = upright;
  const auto down = (height - 1) * steps[0], right = (width - 1) * steps[1];
  switch (turns) {
    case 1: return {data + right, {-steps[1], steps[0], steps[2]}, width, height};
    case 2: return {data + down + right, {-steps[0], -steps[1], steps[2]}, height, width};
    case 3: return {data + down, {steps[1], -steps[0], steps[2]}, width, height};
    default: return upright;
  }
}

Picture find_picture(std::span<const Pictures> memory, std::int64_t place) {
  while (place >= memory.front().frames) {
    place -= memory.front().frames;
    memory = memory.subspan(1);
  }
  Picture picture = memory.front().first;
  picture.data += place * memory.front().step;
  return picture;
}

}  // namespace

// A batch that is being decoded.
struct DecoderPool::Batch {
  std::function<void(std::size_t)> decode;  // a group
  std::size_t groups, next = 0, done = 0;
  std::size_t failed = groups;
  std::exception_ptr error = {};  // of that group
};

std::optional<DecoderPool::Problem> DecoderPool::decode_pictures(
    const PictureGroups& groups, std::span<const DecoderKind> kinds,
    std::span<const Pictures> memory, bool is_scaled, std::size_t threads) {
  const std::size_t count = groups.kinds.size();
  std::int64_t frames = 0;
  for (const Pictures& one : memory) frames += one.frames;
  const bool fits = groups.turns.size() == count && groups.sizes.size() == groups.rows.size() &&
                    groups.wanted.size() == groups.places.size() &&
                    are_bounds(groups.bounds, count, groups.data.size()) &&
                    are_bounds(groups.packet_bounds, count, groups.sizes.size()) &&
                    are_bounds(groups.wanted_bounds, count, groups.wanted.size()) &&
                    are_below(groups.kinds, std::ssize(kinds)) && are_below(groups.places, frames);
  if (!fits) throw std::out_of_range("the columns of groups do not fit");
  const auto decode = [&](std::size_t number) {
    std::vector<Picture> pictures;
    for (const std::int64_t place : cut(groups.places, groups.wanted_bounds, number))
      pictures.push_back(turn(find_picture(memory, place), groups.turns[number]));
    const DecoderKind& kind = kinds[static_cast<std::size_t>(groups.kinds[number])];
    const Group group{cut(groups.data, groups.bounds, number),
                      cut(groups.sizes, groups.packet_bounds, number),
                      cut(groups.rows, groups.packet_bounds, number)};
    Decoder decoder = take(kind);
    const std::string problem = decoder->decode_pictures(
        group, cut(groups.wanted, groups.wanted_bounds, number), pictures, is_scaled);
    if (!problem.empty()) throw std::invalid_argument(problem);
    give_back(kind, std::move(decoder));
  };
  Batch batch{decode, count};
  run(batch, threads);
  if (!batch.error) return {};
  try {
    std::rethrow_exception(batch.error);
  } catch (const std::invalid_argument& problem) {
    return Problem(batch.failed, problem.what());
  }
}

std::string DecoderPool::decode_samples(const DecoderKind& kind, const Group& group,
                                        Packing packing, std::int64_t first, const Samples& out) {
  Decoder decoder = take(kind);
  std::string problem = decoder->decode_samples(group, packing, first, out);
  // AAC's goes on with its random numbers, for noise.
  if (problem.empty() && kind.name != "aac") give_back(kind, std::move(decoder));
  return problem;
}

DecoderPool::Decoder DecoderPool::take(const DecoderKind& kind) {
  {
    const std::lock_guard lock(mutex_);
    const auto is_same = [&](const auto& one) { return one.first == kind; };
    if (const auto at = std::ranges::find_if(idle_, is_same); at != idle_.end()) {
      Decoder decoder = std::move(at->second);
      idle_.erase(at);
      return decoder;
    }
    opened_++;
  }
  return std::make_unique<PacketDecoder>(ffmpeg_, kind);
}

void DecoderPool::give_back(const DecoderKind& kind, Decoder decoder) {
  std::list<std::pair<DecoderKind, Decoder>> dropped;  // closed without the lock
  const std::lock_guard lock(mutex_);
  idle_.emplace_front(kind, std::move(decoder));
  if (idle_.size() > idle_max_) dropped.splice(dropped.begin(), idle_, std::prev(idle_.end()));
}

// Decode a batch by this thread, those that decode other batches now, and new ones whenever these
// are fewer than wanted. While the last groups are decoded elsewhere, this one goes on to the next
// batch.
void DecoderPool::run(Batch& batch, std::size_t threads) {
  std::vector<std::jthread> helpers;  // end after the lock
  helpers.reserve(batch.groups);
  std::unique_lock lock(mutex_);
  batches_.push_back(&batch);
  working_++;
  while (batch.done < batch.groups) {
    const std::size_t wanted = std::min(threads, batch.groups - batch.next);
    try {
      for (; working_ < wanted && helpers.size() < batch.groups; working_++)
        helpers.emplace_back([this, &batch, threads] { help(batch, threads); });
    } catch (const std::system_error&) {
      threads = 0;  // the system grants no more: those that run do all the work
    }
    if (decode_next(lock)) continue;
    working_--;
    ended_.wait(lock);
    working_++;
  }
  working_--;
  batches_.remove(&batch);
}

// Decode groups for a batch, until it has none left or there are threads of other batches.
void DecoderPool::help(const Batch& batch, std::size_t threads) {
  std::unique_lock lock(mutex_);
  while (batch.next < batch.groups && working_ <= threads) decode_next(lock);
  working_--;
}

// Decode the next group of the batch that came first, of those that have any left; or return false.
bool DecoderPool::decode_next(std::unique_lock<std::mutex>& lock) {
  const auto has_any = [](const Batch* one) { return one->next < one->groups; };
  const auto first = std::ranges::find_if(batches_, has_any);
  if (first == batches_.end()) return false;
  Batch& batch = **first;
  const std::size_t number = batch.next++;
  lock.unlock();
  std::exception_ptr error;
  try {
    batch.decode(number);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (error) {
    batch.groups = batch.next;  // the others are not begun
    if (number < batch.failed) std::tie(batch.failed, batch.error) = std::tuple(number, error);
  }
  if (++batch.done == batch.groups) ended_.notify_all();
  return true;
}

std::size_t DecoderPool::count_opened() const {
  const std::lock_guard lock(mutex_);
  return opened_;
}

std::vector<std::string> DecoderPool::list_idle() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [kind, decoder] : idle_) names.push_back(kind.name);
  return names;
}

}  // namespace penstock::codecs

// FFmpeg as far as packets in memory need it, found in the process: neither its headers nor its
// libraries are there when this is built. Of its structures the first members are named, as they
// are in FFmpeg 8; other versions are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace penstock::codecs {

struct Packet {
  void* buffer;
  std::int64_t pts, dts;
  std::uint8_t* data;
  int size;
};

struct Frame {
  std::uint8_t* data[8];
  int linesize[8];
  std::uint8_t** planes;
  int width, height, samples, format, kind[3];
  std::int64_t pts, dts;
  int base[2], quality;
  void* opaque;
  int repeat, rate;
  void *buffers[8], **more_buffers;
  int more_buffers_count;
  void** side_data;
  int side_data_count, flags, range, primaries, transfer, space, chroma;
  std::int64_t best_pts;
  void* metadata;
  int error_flags;
  void *hardware, *opaque_owner;
  std::size_t crop[4];
  void* owner;
  int channel_order, channels;
};
static_assert(offsetof(Frame, pts) == 136 && offsetof(Frame, flags) == 276);
static_assert(offsetof(Frame, error_flags) == 320 && offsetof(Frame, channels) == 388);

struct Parameters {
  int type, id;
  std::uint32_t tag;
  std::uint8_t* extradata;
  int extradata_size;
};

#define PENSTOCK_FFMPEG(X)                                           \
  X(av_malloc, void*, (std::size_t))                                 \
  X(av_frame_alloc, Frame*, ())                                      \
  X(av_frame_free, void, (Frame**))                                  \
  X(av_frame_unref, void, (Frame*))                                  \
  X(av_frame_copy_props, int, (Frame*, const Frame*))                \
  X(av_opt_set, int, (void*, const char*, const char*, int))         \
  X(av_opt_set_int, int, (void*, const char*, std::int64_t, int))    \
  X(av_strerror, int, (int, char*, std::size_t))                     \
  X(av_packet_alloc, Packet*, ())                                    \
  X(av_packet_free, void, (Packet**))                                \
  X(av_packet_unref, void, (Packet*))                                \
  X(av_new_packet, int, (Packet*, int))                              \
  X(avcodec_version, unsigned, ())                                   \
  X(avcodec_find_decoder_by_name, const void*, (const char*))        \
  X(avcodec_alloc_context3, void*, (const void*))                    \
  X(avcodec_free_context, void, (void**))                            \
  X(avcodec_parameters_alloc, Parameters*, ())                       \
  X(avcodec_parameters_free, void, (Parameters**))                   \
  X(avcodec_parameters_from_context, int, (Parameters*, void*))      \
  X(avcodec_parameters_to_context, int, (void*, const Parameters*))  \
  X(avcodec_open2, int, (void*, const void*, void*))                 \
  X(avcodec_send_packet, int, (void*, const Packet*))                \
  X(avcodec_receive_frame, int, (void*, Frame*))                     \
  X(avcodec_flush_buffers, void, (void*))                            \
  X(sws_alloc_context, void*, ())                                    \
  X(sws_freeContext, void, (void*))                                  \
  X(sws_scale_frame, int, (void*, Frame*, const Frame*))

// Functions of the libraries that a loaded module was linked with.
struct Ffmpeg {
#define PENSTOCK_DECLARE(name, returns, takes) returns(*name) takes = nullptr;
  PENSTOCK_FFMPEG(PENSTOCK_DECLARE)
#undef PENSTOCK_DECLARE

  // Find them; std::runtime_error that says what is missing.
  explicit Ffmpeg(const std::string& module);
};

}  // namespace penstock::codecs

// Clips by a bare loop: packets in memory, FFmpeg's decoder and conversion, no loader. The libraries
// are those of the running PyAV, opened by path, so that both sides decode by the same code; of
// their structures only the first members are named here, which have not moved since FFmpeg 4.
//
//   clips_floor libavutil.so libavcodec.so libswscale.so DECODER CLIPS THREADS
//
// CLIPS is one record a clip, all int32 but the bytes: packets, frames wanted, width, height, bytes
// of the decoder's configuration; size, row and whether it is wanted, of each packet; configuration
// and packets. A line "plain" decodes packets until the frames wanted are out; "skip" decodes of
// those that are not wanted only what others refer to, and ends at the last wanted packet.
// The answer is nanoseconds, those of processors, and a sum of all bytes of the frames (after a line
// "... sum", else 0).
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { void *buf; int64_t pts, dts; uint8_t *data; int size; } Packet;
typedef struct {
  uint8_t *data[8];
  int linesize[8];
  uint8_t **extended;
  int width, height, samples, format, kind[4];
  int64_t pts;
} Frame;
typedef struct { int type, id; uint32_t tag; uint8_t *extradata; int extradata_size; } Parameters;

#define LIBRARY(X)                                                          \
  X(0, av_malloc, void *, (size_t))                                         \
  X(0, av_frame_alloc, Frame *, (void))                                     \
  X(0, av_opt_set_int, int, (void *, const char *, int64_t, int))           \
  X(0, av_log_set_level, void, (int))                                       \
  X(1, av_packet_alloc, Packet *, (void))                                   \
  X(1, av_new_packet, int, (Packet *, int))                                 \
  X(1, av_packet_unref, void, (Packet *))                                   \
  X(1, avcodec_find_decoder_by_name, const void *, (const char *))          \
  X(1, avcodec_alloc_context3, void *, (const void *))                      \
  X(1, avcodec_parameters_alloc, Parameters *, (void))                      \
  X(1, avcodec_parameters_from_context, int, (Parameters *, void *))        \
  X(1, avcodec_parameters_to_context, int, (void *, const Parameters *))    \
  X(1, avcodec_open2, int, (void *, const void *, void *))                  \
  X(1, avcodec_send_packet, int, (void *, const Packet *))                  \
  X(1, avcodec_receive_frame, int, (void *, Frame *))                       \
  X(1, avcodec_flush_buffers, void, (void *))                               \
  X(2, sws_getContext, void *,                                              \
    (int, int, int, int, int, int, int, void *, void *, const double *))    \
  X(2, sws_scale, int,                                                      \
    (void *, uint8_t *const *, const int *, int, int, uint8_t *const *, const int *))
#define DECLARE(library, name, returns, takes) static returns(*name) takes;
LIBRARY(DECLARE)

enum { RGB24 = 2, BILINEAR = 2, NONREF = 8, DEFAULT = 0 };

typedef struct {
  int packets, wanted, width, height, config_bytes;
  const int32_t *table;
  const uint8_t *config, *data;
} Clip;

static Clip *clips;
static int clip_count, next_clip, skips, sums;
static uint64_t total;
static const char *decoder_name;

static void fail(const char *what) {
  fprintf(stderr, "clips_floor: %s\n", what);
  exit(1);
}

typedef struct {
  void *context, *scaler;
  Packet *packet;
  Frame *frame;
  uint8_t *pixels;
} Worker;

static void open_decoder(Worker *own, const Clip *clip) {
  const void *codec = avcodec_find_decoder_by_name(decoder_name);
  if (!codec) fail("no such decoder");
  own->context = avcodec_alloc_context3(codec);
  Parameters *told = avcodec_parameters_alloc();
  avcodec_parameters_from_context(told, own->context);
  told->extradata = av_malloc(clip->config_bytes + 64);
  memset(told->extradata, 0, clip->config_bytes + 64);
  memcpy(told->extradata, clip->config, clip->config_bytes);
  told->extradata_size = clip->config_bytes;
  avcodec_parameters_to_context(own->context, told);
  av_opt_set_int(own->context, "threads", 1, 0);
  if (avcodec_open2(own->context, codec, NULL) < 0) fail("the decoder does not open");
  own->packet = av_packet_alloc();
  own->frame = av_frame_alloc();
}

// Take what comes out; returns the frames that were wanted.
static int receive(Worker *own, const Clip *clip, int taken, const uint8_t *is_wanted) {
  int found = 0;
  while (avcodec_receive_frame(own->context, own->frame) == 0) {
    Frame *got = own->frame;
    if (got->pts < 0 || !is_wanted[got->pts]) continue;
    if (!own->scaler)
      own->scaler = sws_getContext(got->width, got->height, got->format, clip->width,
                                   clip->height, RGB24, BILINEAR, NULL, NULL, NULL);
    uint8_t *to[4] = {own->pixels + (size_t)(taken + found) * clip->width * clip->height * 3};
    int lines[4] = {clip->width * 3};
    sws_scale(own->scaler, got->data, got->linesize, 0, got->height, to, lines);
    found++;
  }
  return found;
}

static void decode(Worker *own, const Clip *clip) {
  if (!own->context) open_decoder(own, clip);
  size_t bytes = (size_t)clip->wanted * clip->width * clip->height * 3;
  own->pixels = malloc(bytes);
  uint8_t is_wanted[1 << 16] = {0};
  int left = 0, taken = 0;
  for (int n = 0; n < clip->packets; n++)
    if (clip->table[3 * n + 2]) is_wanted[clip->table[3 * n + 1]] = 1, left++;
  const uint8_t *at = clip->data;
  int in_skipping = 0;
  for (int n = 0; n < clip->packets && taken < clip->wanted && !(skips && !left); n++) {
    int size = clip->table[3 * n], wanted = clip->table[3 * n + 2];
    if (av_new_packet(own->packet, size)) fail("no memory");
    memcpy(own->packet->data, at, size);
    own->packet->pts = clip->table[3 * n + 1];
    if (skips && in_skipping == wanted) {
      in_skipping = !wanted;
      av_opt_set_int(own->context, "skip_frame", in_skipping ? NONREF : DEFAULT, 0);
    }
    int code = avcodec_send_packet(own->context, own->packet);
    if (code < 0 && clip->table[3 * n + 1] >= 0) fail("a packet is not decoded");
    av_packet_unref(own->packet);
    at += size;
    left -= wanted;
    taken += receive(own, clip, taken, is_wanted);
  }
  if (taken < clip->wanted) {
    avcodec_send_packet(own->context, NULL);
    taken += receive(own, clip, taken, is_wanted);
  }
  if (taken != clip->wanted) fail("frames are missing");
  avcodec_flush_buffers(own->context);
  uint64_t sum = 0;
  for (size_t n = 0; sums && n < bytes; n++) sum += own->pixels[n] * (n % 251 + 1);
  free(own->pixels);
  __atomic_add_fetch(&total, sum, __ATOMIC_RELAXED);
}

static void *work(void *own) {
  int number;
  while ((number = __atomic_fetch_add(&next_clip, 1, __ATOMIC_RELAXED)) < clip_count)
    decode(own, &clips[number]);
  return NULL;
}

static void read_clips(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) fail("the clips are not there");
  fseek(file, 0, SEEK_END);
  long size = ftell(file);
  rewind(file);
  uint8_t *all = malloc(size), *at = all;
  if (fread(all, 1, size, file) != (size_t)size) fail("the clips are cut");
  fclose(file);
  while (at < all + size) {
    clips = realloc(clips, (clip_count + 1) * sizeof *clips);
    Clip *clip = &clips[clip_count++];
    memcpy(clip, at, 5 * sizeof(int32_t));
    clip->table = (const int32_t *)(at + 5 * sizeof(int32_t));
    clip->config = (const uint8_t *)(clip->table + 3 * clip->packets);
    clip->data = clip->config + clip->config_bytes;
    at = (uint8_t *)clip->data;
    for (int n = 0; n < clip->packets; n++) at += clip->table[3 * n];
    at = all + ((at - all + 3) & ~3L);
  }
}

static long long count_ns(struct timespec begin, struct timespec end) {
  return (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec;
}

int main(int count, char **words) {
  if (count != 7) fail("give three libraries, the decoder, the clips and the threads");
  void *library[3];
  for (int n = 0; n < 3; n++)
    if (!(library[n] = dlopen(words[1 + n], RTLD_NOW | RTLD_GLOBAL))) fail(dlerror());
#define FIND(number, name, returns, takes) \
  if (!(name = (returns(*) takes)dlsym(library[number], #name))) fail(#name);
  LIBRARY(FIND)
  av_log_set_level(8);
  decoder_name = words[4];
  read_clips(words[5]);
  int threads = atoi(words[6]);
  Worker *workers = calloc(threads, sizeof *workers);
  pthread_t *started = calloc(threads, sizeof *started);
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    skips = strstr(line, "skip") != NULL;
    sums = strstr(line, "sum") != NULL;
    next_clip = 0, total = 0;
    struct timespec begin, end, cpu_begin, cpu_end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_begin);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int n = 0; n < threads; n++) pthread_create(&started[n], NULL, work, &workers[n]);
    for (int n = 0; n < threads; n++) pthread_join(started[n], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu_end);
    printf("%lld %lld %llu\n", count_ns(begin, end), count_ns(cpu_begin, cpu_end),
           (unsigned long long)total);
    fflush(stdout);
  }
}

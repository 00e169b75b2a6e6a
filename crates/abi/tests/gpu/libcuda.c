/*
 * A stand-in for CUDA's driver library, for tests on machines without a GPU.
 *
 * It is stricter than the real one. Device pointers are addresses of pages without access, so
 * code that touches them directly faults; copies use a second mapping of the same memory.
 * Asynchronous copies happen when their end is awaited and not before, so a test finds
 * data that is used too early, and staging memory that is overwritten too early. Calls without a
 * current context, streams of another context and host memory that is not pinned are refused.
 *
 * Functions with the prefix stub_ control it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
};

enum { DEVICES = 2, ALLOCATIONS = 256, COPIES = 4096, CONTEXTS = 16, DEPTH = 8, NAMES = 64 };

struct context {
    int device;
    int alive;
};

struct allocation {
    uint64_t start;
    size_t size;
    char *bytes; /* NULL after it was freed */
    struct context *context;
    int device;
    int managed;
    int pinned;
    int sync_memops;
};

struct copy {
    char *to;
    char *from;
    size_t length;
    struct allocation *memory;
};

struct stream {
    struct context *context;
    unsigned long started;
    unsigned long ended;
    struct copy list[COPIES]; /* a ring */
};

struct event {
    struct stream *stream;
    unsigned long copies; /* copies of the stream before the event */
    int queried;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised;
static struct context contexts[CONTEXTS]; /* the first DEVICES are the primary ones */
static int used_contexts = DEVICES;
static struct allocation allocations[ALLOCATIONS];
static int used_allocations;
static __thread struct context *current[DEPTH];
static __thread int depth;

static struct call {
    const char *name;
    long calls;
    int fails; /* error of all later calls */
} calls[NAMES];

static struct call *find_call(const char *name)
{
    for (int i = 0; i < NAMES; i++) {
        if (!calls[i].name)
            calls[i].name = name;
        if (!strcmp(calls[i].name, name))
            return &calls[i];
    }
    abort();
}

static int begin(const char *name)
{
    struct call *call;

    pthread_mutex_lock(&lock);
    call = find_call(name);
    call->calls++;
    /* A forked child has not initialised CUDA. */
    return initialised == getpid() ? call->fails : NOT_INITIALIZED;
}

static int end(int result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

#define BEGIN                                  \
    int refused = begin(__func__);             \
    if (refused)                               \
    return end(refused)

long stub_calls(const char *name)
{
    pthread_mutex_lock(&lock);
    long count = find_call(strdup(name))->calls;
    pthread_mutex_unlock(&lock);
    return count;
}

void stub_fail(const char *name, int code)
{
    pthread_mutex_lock(&lock);
    find_call(strdup(name))->fails = code;
    pthread_mutex_unlock(&lock);
}

static struct context *top(void)
{
    struct context *context = depth ? current[depth - 1] : NULL;
    return context && context->alive ? context : NULL;
}

static struct allocation *find(uint64_t at, size_t length)
{
    for (int i = 0; i < used_allocations; i++) {
        struct allocation *memory = &allocations[i];
        if (memory->bytes && at >= memory->start && at + length <= memory->start + memory->size)
            return memory;
    }
    return NULL;
}

int cuInit(unsigned flags)
{
    (void)flags;
    initialised = getpid();
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    BEGIN;
    if (ordinal < 0 || ordinal >= DEVICES)
        return end(INVALID_DEVICE);
    *device = ordinal;
    return end(SUCCESS);
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    BEGIN;
    *flags = 0;
    *active = contexts[device].alive;
    return end(SUCCESS);
}

int cuDevicePrimaryCtxRetain(struct context **context, int device)
{
    BEGIN;
    contexts[device] = (struct context){ .device = device, .alive = 1 };
    *context = &contexts[device];
    return end(SUCCESS);
}

int cuCtxCreate_v2(struct context **context, unsigned flags, int device)
{
    (void)flags;
    BEGIN;
    *context = &contexts[used_contexts++];
    **context = (struct context){ .device = device, .alive = 1 };
    current[depth++] = *context;
    return end(SUCCESS);
}

int cuCtxDestroy_v2(struct context *context)
{
    BEGIN;
    context->alive = 0;
    for (int i = 0; i < used_allocations; i++)
        if (allocations[i].context == context)
            allocations[i].bytes = NULL;
    return end(SUCCESS);
}

int cuCtxPushCurrent_v2(struct context *context)
{
    BEGIN;
    if (!context || !context->alive || depth == DEPTH)
        return end(INVALID_CONTEXT);
    current[depth++] = context;
    return end(SUCCESS);
}

int cuCtxPopCurrent_v2(struct context **context)
{
    BEGIN;
    if (!depth)
        return end(INVALID_CONTEXT);
    *context = current[--depth];
    return end(SUCCESS);
}

int cuCtxGetCurrent(struct context **context)
{
    BEGIN;
    *context = depth ? current[depth - 1] : NULL;
    return end(SUCCESS);
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    static __thread int present;
    int before = present;

    BEGIN;
    present = *mode;
    *mode = before;
    return end(SUCCESS);
}

static int allocate(uint64_t *start, size_t size, struct allocation kind)
{
    struct allocation *memory = &allocations[used_allocations];
    size_t pages = (size + 4095) / 4096 * 4096;
    int direct = kind.managed || kind.pinned;
    int file = memfd_create("gpu", 0);

    if (!size || used_allocations == ALLOCATIONS || ftruncate(file, pages))
        return OUT_OF_MEMORY;
    *memory = kind;
    memory->size = size;
    memory->bytes = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memory->start = (uint64_t)memory->bytes;
    if (!direct)
        memory->start = (uint64_t)mmap(NULL, pages, PROT_NONE, MAP_SHARED, file, 0);
    close(file);
    used_allocations++;
    *start = memory->start;
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *start, size_t size)
{
    BEGIN;
    if (!top())
        return end(INVALID_CONTEXT);
    struct allocation kind = { .context = top(), .device = top()->device };
    return end(allocate(start, size, kind));
}

int cuMemAllocManaged(uint64_t *start, size_t size, unsigned flags)
{
    (void)flags;
    BEGIN;
    struct allocation kind = { .context = top(), .managed = 1 };
    return end(allocate(start, size, kind));
}

int cuMemHostAlloc(void **start, size_t size, unsigned flags)
{
    (void)flags;
    BEGIN;
    struct allocation kind = { .pinned = 1 };
    return end(allocate((uint64_t *)start, size, kind));
}

/* Memory of a device without a context, as cuMemCreate and cuMemMap make it. */
int stub_alloc_mapped(uint64_t *start, size_t size, int device)
{
    BEGIN;
    struct allocation kind = { .device = device };
    return end(allocate(start, size, kind));
}

int cuMemFree_v2(uint64_t start)
{
    BEGIN;
    struct allocation *memory = find(start, 1);
    if (!memory || memory->start != start)
        return end(INVALID_VALUE);
    memory->bytes = NULL;
    return end(SUCCESS);
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t at)
{
    BEGIN;
    struct allocation *memory = find(at, 1);
    if (!memory)
        return end(INVALID_VALUE);
    switch (attribute) {
    case 1:
        *(struct context **)value = memory->context;
        return end(SUCCESS);
    case 2:
        *(unsigned *)value = memory->pinned ? 1 : 2;
        return end(SUCCESS);
    case 6:
        *(unsigned *)value = memory->sync_memops;
        return end(SUCCESS);
    case 8:
        *(unsigned *)value = memory->managed;
        return end(SUCCESS);
    case 9:
        *(int *)value = memory->device;
        return end(SUCCESS);
    default:
        return end(INVALID_VALUE);
    }
}

int cuPointerSetAttribute(const void *value, int attribute, uint64_t at)
{
    BEGIN;
    struct allocation *memory = find(at, 1);
    if (!memory || attribute != 6 || !memory->context)
        return end(INVALID_VALUE);
    memory->sync_memops = *(const unsigned *)value;
    return end(SUCCESS);
}

int cuMemGetAddressRange_v2(uint64_t *start, size_t *size, uint64_t at)
{
    BEGIN;
    struct allocation *memory = find(at, 1);
    if (!memory)
        return end(INVALID_VALUE);
    *start = memory->start;
    *size = memory->size;
    return end(SUCCESS);
}

/* The descriptor cannot be mapped, like a dma-buf of the real driver. */
int cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t size, int type,
                                  unsigned long long flags)
{
    BEGIN;
    if (!find(at, size) || type != 1 || flags)
        return end(INVALID_VALUE);
    *(int *)handle = eventfd(0, 0);
    return end(SUCCESS);
}

int cuStreamCreate(struct stream **stream, unsigned flags)
{
    BEGIN;
    if (!top())
        return end(INVALID_CONTEXT);
    if (flags != 1) /* the default kind waits for kernels of the program */
        return end(INVALID_VALUE);
    *stream = calloc(1, sizeof(**stream));
    (*stream)->context = top();
    return end(SUCCESS);
}

int cuEventCreate(struct event **event, unsigned flags)
{
    (void)flags;
    BEGIN;
    if (!top())
        return end(INVALID_CONTEXT);
    *event = calloc(1, sizeof(**event));
    return end(SUCCESS);
}

int cuEventRecord(struct event *event, struct stream *stream)
{
    BEGIN;
    if (stream->context != top())
        return end(INVALID_HANDLE);
    event->stream = stream;
    event->copies = stream->started;
    event->queried = 0;
    return end(SUCCESS);
}

/* The first query finds the copies unfinished, and the second one copies. */
int cuEventQuery(struct event *event)
{
    struct stream *stream = event->stream;
    int result = SUCCESS;

    BEGIN;
    if (!event->queried) {
        event->queried = 1;
        return end(NOT_READY);
    }
    while (stream->ended < event->copies) {
        struct copy *copy = &stream->list[stream->ended++ % COPIES];
        if (copy->memory->bytes)
            memcpy(copy->to, copy->from, copy->length);
        else
            result = ILLEGAL_ADDRESS;
    }
    return end(result);
}

static int start(struct stream *stream, uint64_t device, void *host, size_t length, int write)
{
    struct allocation *memory = find(device, length);
    struct allocation *staging = find((uint64_t)host, length);

    if (!stream || stream->context != top())
        return INVALID_HANDLE;
    if (!memory || memory->device != top()->device || !staging || !staging->pinned)
        return INVALID_VALUE;
    if (stream->started - stream->ended == COPIES)
        abort();
    struct copy *copy = &stream->list[stream->started++ % COPIES];
    char *bytes = memory->bytes + (device - memory->start);
    copy->to = write ? bytes : host;
    copy->from = write ? host : bytes;
    copy->length = length;
    copy->memory = memory;
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t length, struct stream *stream)
{
    BEGIN;
    return end(start(stream, to, (void *)from, length, 1));
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t length, struct stream *stream)
{
    BEGIN;
    return end(start(stream, from, to, length, 0));
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t length)
{
    BEGIN;
    struct allocation *memory = find(to, length);
    if (!memory)
        return end(INVALID_VALUE);
    memcpy(memory->bytes + (to - memory->start), from, length);
    return end(SUCCESS);
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t length)
{
    BEGIN;
    struct allocation *memory = find(from, length);
    if (!memory)
        return end(INVALID_VALUE);
    memcpy(to, memory->bytes + (from - memory->start), length);
    return end(SUCCESS);
}

static const char *name_of(int code)
{
    switch (code) {
    case INVALID_VALUE:
        return "CUDA_ERROR_INVALID_VALUE";
    case OUT_OF_MEMORY:
        return "CUDA_ERROR_OUT_OF_MEMORY";
    case NOT_INITIALIZED:
        return "CUDA_ERROR_NOT_INITIALIZED";
    case INVALID_CONTEXT:
        return "CUDA_ERROR_INVALID_CONTEXT";
    case ILLEGAL_ADDRESS:
        return "CUDA_ERROR_ILLEGAL_ADDRESS";
    default:
        return NULL;
    }
}

int cuGetErrorName(int code, const char **name)
{
    *name = name_of(code);
    return *name ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text)
{
    *text = name_of(code) ? "as told by the stand-in" : NULL;
    return *text ? SUCCESS : INVALID_VALUE;
}

/* A stand-in for libnvidia-ml.so.1: two A100 joined by two NVLinks. The environment variable
   STAND_IN_FAILS, a list of FUNCTION:CODE separated by spaces, makes calls on GPU 1 (and calls without a
   GPU) return CODE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int index; const char *uuid, *pci; } Gpu;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} Pci;

static Gpu gpus[2] = {
    {0, "GPU-aaaa0000-0000-0000-0000-000000000000", "00000000:18:00.0"},
    {1, "GPU-bbbb0000-0000-0000-0000-000000000000", "00000000:3B:00.0"},
};

static int fails(const char *function, Gpu *gpu) {
    const char *list = getenv("STAND_IN_FAILS");
    size_t length = strlen(function);
    if (gpu && gpu->index == 0) return 0;
    for (const char *at = list; at && (at = strstr(at, function)); at += length)
        if (at[length] == ':') return atoi(at + length + 1);
    return 0;
}

#define CHECK(gpu) do { int code = fails(__func__, gpu); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; CHECK(0); return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { CHECK(0); snprintf(out, size, "570.00"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *out) { CHECK(0); *out = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **out) { CHECK(&gpus[index]); *out = &gpus[index]; return 0; }
int nvmlDeviceGetUUID(Gpu *gpu, char *out, unsigned size) { CHECK(gpu); snprintf(out, size, "%s", gpu->uuid); return 0; }
int nvmlDeviceGetName(Gpu *gpu, char *out, unsigned size) { CHECK(gpu); snprintf(out, size, "NVIDIA A100-SXM4-80GB"); return 0; }

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *out) {
    CHECK(gpu);
    memset(out, 0, sizeof *out);
    snprintf(out->text, sizeof out->text, "%s", gpu->pci);
    return 0;
}

int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *out) {
    CHECK(gpu);
    out->total = 80ULL << 30; out->free = 79ULL << 30; out->used = 1ULL << 30;
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) { CHECK(gpu); *major = 8; *minor = 0; return 0; }

int nvmlDeviceGetCpuAffinity(Gpu *gpu, unsigned words, unsigned long *out) {
    CHECK(gpu);
    memset(out, 0, words * sizeof *out);
    out[1] = 5; /* CPUs 64 and 66 */
    return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(Gpu *a, Gpu *b, unsigned *out) { (void)a; CHECK(b); *out = 40; return 0; }

int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *out) {
    if (link >= 2) return 2;
    CHECK(gpu);
    *out = 1;
    return 0;
}
int nvmlDeviceGetNvLinkVersion(Gpu *gpu, unsigned link, unsigned *out) { (void)link; CHECK(gpu); *out = 4; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(Gpu *gpu, unsigned link, unsigned *out) { (void)link; CHECK(gpu); *out = 0; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned link, Pci *out) {
    (void)link;
    CHECK(gpu);
    return nvmlDeviceGetPciInfo_v3(&gpus[1 - gpu->index], out);
}

/* A stand-in for libnvidia-ml.so.1: one GPU whose PCIe link wakes up under load. The link runs at Gen4 x8 while the
   file named by STAND_IN_LOAD exists, and at Gen1 x8 otherwise. Each reading of the generation adds a byte to the file
   named by STAND_IN_READS. Everything else is missing, as in an old driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UUID "GPU-aaaa0000-0000-0000-0000-000000000000"

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} Pci;

static int card;

int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in error"; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, int **out) { (void)index; *out = &card; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, int **out) { *out = &card; return strcmp(uuid, UUID) ? 6 : 0; }
int nvmlDeviceGetUUID(int *gpu, char *out, unsigned size) { (void)gpu; snprintf(out, size, UUID); return 0; }
int nvmlDeviceGetName(int *gpu, char *out, unsigned size) { (void)gpu; snprintf(out, size, "NVIDIA L4"); return 0; }
int nvmlDeviceGetPciInfo_v3(int *gpu, Pci *out) {
    (void)gpu;
    memset(out, 0, sizeof *out);
    snprintf(out->text, sizeof out->text, "00000000:18:00.0");
    return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(int *gpu, unsigned *out) { (void)gpu; *out = 4; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(int *gpu, unsigned *out) { (void)gpu; *out = 16; return 0; }
int nvmlDeviceGetCurrPcieLinkWidth(int *gpu, unsigned *out) { (void)gpu; *out = 8; return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(int *gpu, unsigned *out) {
    const char *load = getenv("STAND_IN_LOAD"), *reads = getenv("STAND_IN_READS");
    FILE *file = reads ? fopen(reads, "a") : 0;
    (void)gpu;
    if (file) { fputc('.', file); fclose(file); }
    *out = load && access(load, F_OK) == 0 ? 4 : 1;
    return 0;
}

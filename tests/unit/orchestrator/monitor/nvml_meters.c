/* The stand-in for libnvidia-ml.so.1 with what changes while a GPU works. Values come from the text file named by
   STAND_IN_METERS, read at each call, so that they may change while it runs:

     G NAME NUMBER      a value of GPU number G, by the names below
     (field.ID or field.ID:SCOPE a field value, gpm.ID a share in percent or a rate in MiB/s)
     fail FUNCTION CODE
     hang FUNCTION      the call never returns
     xid G NUMBER       told once by the event set

   The machine itself is described as before, by STAND_IN_MACHINE. */
#define nvmlDeviceGetFieldValues described_fields
#include "../../topology/probe/nvml_stand_in.c"
#undef nvmlDeviceGetFieldValues
#include <unistd.h>

enum { TIMED_OUT = 10, ALL_FIELDS = 1024 };

static FILE *meters(void) { return fopen(getenv("STAND_IN_METERS") ? getenv("STAND_IN_METERS") : "", "r"); }

static int found(int gpu, const char *name, u64 *out) {
    char line[256], word[80];
    int at, code = NOT_SUPPORTED;
    u64 value;
    FILE *file = meters();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%d %79s %llu", &at, word, &value) == 3 && at == gpu && !strcmp(word, name)) *out = value, code = OK;
    if (file) fclose(file);
    return code;
}

static int wrong(const char *function) {
    char line[256], word[80];
    int value, code = OK, hangs = 0;
    FILE *file = meters();
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "fail %79s %d", word, &value) == 2 && !strcmp(word, function)) code = value;
        if (sscanf(line, "hang %79s", word) == 1 && !strcmp(word, function)) hangs = 1;
    }
    if (file) fclose(file);
    while (hangs) pause();
    return code;
}

#define TELL(gpu, name) do { int code = wrong(__func__); if (code) return code; u64 value; \
    code = found(gpu, name, &value); if (code) return code; *out = value; return OK; } while (0)
#define METER(function, name) int function(Unit *u, unsigned *out) { TELL(u->gpu, name); }

METER(nvmlDeviceGetPowerUsage, "power_milliwatts")
METER(nvmlDeviceGetPcieReplayCounter, "replays")

int nvmlDeviceGetHandleByUUID(const char *uuid, Unit **out) {
    int code = wrong(__func__);
    if (code) return code;
    for (int at = 0; at < m.num_gpus; at++)
        if (!strcmp(m.gpus[at].whole.uuid, uuid)) { *out = &m.gpus[at].whole; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, Unit **out) {
    for (int at = 0; at < m.num_gpus; at++)
        if (strlen(m.gpus[at].pci) > 4 && strstr(m.gpus[at].pci, pci)) { *out = &m.gpus[at].whole; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetTemperature(Unit *u, unsigned sensor, unsigned *out) { (void)sensor; TELL(u->gpu, "temperature"); }
int nvmlDeviceGetClockInfo(Unit *u, unsigned kind, unsigned *out) { TELL(u->gpu, kind == 1 ? "sm_clock" : "memory_clock"); }
int nvmlDeviceGetMaxClockInfo(Unit *u, unsigned kind, unsigned *out) { (void)kind; TELL(u->gpu, "max_sm_clock"); }
int nvmlDeviceGetPcieThroughput(Unit *u, unsigned way, unsigned *out) { TELL(u->gpu, way ? "rx_kib" : "tx_kib"); }
int nvmlDeviceGetTotalEccErrors(Unit *u, unsigned kind, unsigned since, u64 *out) {
    (void)since;
    TELL(u->gpu, kind ? "ecc_uncorrected" : "ecc_corrected");
}
typedef struct { unsigned gpu, memory; } Rates;
int nvmlDeviceGetUtilizationRates(Unit *u, Rates *rates) {
    unsigned *out = &rates->gpu;
    rates->memory = 0;
    TELL(u->gpu, "utilisation");
}

#ifndef OLD
int nvmlDeviceGetFieldValues(Unit *u, int count, Field *values) {
    u64 is_simple;
    int code = wrong(__func__);
    if (code) return code;
    if (count > 1 && !found(u->gpu, "one_field_a_call", &is_simple)) return BAD_ARGUMENT;
    for (int at = 0; at < count; at++) {
        char name[40], plain[40];
        snprintf(name, sizeof name, "field.%u:%u", values[at].field, values[at].scope);
        snprintf(plain, sizeof plain, "field.%u", values[at].field);
        values[at].code = found(u->gpu, name, &values[at].value.wide);
        if (values[at].code && !values[at].scope) values[at].code = found(u->gpu, plain, &values[at].value.wide);
        values[at].type = 3;
    }
    return OK;
}

/* Shares between two samples: the value in the file stands for the whole interval. */
typedef struct { unsigned version, is_supported; } GpmSupport;
typedef struct { int gpu; } GpmSample;
typedef struct { unsigned id; int code; double value; char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *before, *after; GpmMetric metrics[]; } GpmRequest;
int nvmlGpmQueryDeviceSupport(Unit *u, GpmSupport *out) {
    u64 value;
    out->is_supported = !found(u->gpu, "gpm.2", &value);
    return wrong(__func__);
}
int nvmlGpmSampleAlloc(GpmSample **out) { *out = calloc(1, sizeof **out); return OK; }
int nvmlGpmSampleGet(Unit *u, GpmSample *out) { out->gpu = u->gpu + 1; return wrong(__func__); }
int nvmlGpmMetricsGet(GpmRequest *request) {
    if (!request->before->gpu || request->before->gpu != request->after->gpu) return BAD_ARGUMENT;
    for (unsigned at = 0; at < request->count; at++) {
        char name[40];
        u64 value = 0;
        snprintf(name, sizeof name, "gpm.%u", request->metrics[at].id);
        request->metrics[at].code = found(request->before->gpu - 1, name, &value);
        request->metrics[at].value = (double)value;
    }
    return wrong(__func__);
}

typedef struct { Unit *device; u64 type, data; unsigned instance, compute; } Event;
static int told;
int nvmlEventSetCreate(void **out) { *out = &told; return wrong(__func__); }
int nvmlDeviceRegisterEvents(Unit *u, u64 types, void *set) { (void)u; (void)types; (void)set; return wrong(__func__); }
int nvmlEventSetWait_v2(void *set, Event *out, unsigned milliseconds) {
    char line[256];
    int gpu, number, seen = 0;
    FILE *file = meters();
    (void)set; (void)milliseconds;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "xid %d %d", &gpu, &number) == 2 && seen++ == told) {
            fclose(file);
            told++;
            *out = (Event){&m.gpus[gpu].whole, 8, (u64)number, 0, 0};
            return OK;
        }
    if (file) fclose(file);
    usleep(10000);
    return TIMED_OUT;
}
#endif

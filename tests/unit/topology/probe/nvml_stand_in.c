/* A stand-in for libnvidia-ml.so.1 that answers from a described machine: the text file named by the environment
   variable STAND_IN_MACHINE, read at each nvmlInit. One statement a line; GPUs and links by number:

     driver TEXT                        cuda NUMBER
     gpu G KEY VALUE                    KEY as in set_gpu() below
     link G L STATE VERSION TYPE PCI    an NVLink port
     slice G SLOT UUID MIB GI CI SMS NAME   a MIG device
     level A B NUMBER                   common ancestor of two GPUs (default 40); "levels NUMBER" for all
     p2p A B READ WRITE NVLINK ATOMICS
     fail FUNCTION G CODE               FUNCTION may be *, G -1 for every GPU and for calls without one

   Built with -DOLD it lacks the functions that drivers of about 2020 do not have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, VERSION_MISMATCH = 25 };
enum { MAX_GPUS = 64, MAX_LINKS = 36, MAX_SLICES = 7, MAX_FAILS = 256 };

typedef unsigned long long u64;
typedef struct { int gpu, slice; char uuid[96], name[96]; u64 total, free; unsigned gi, ci, sms; } Unit;
typedef struct { int is_there; unsigned state, version, type; char pci[32]; } Port;
typedef struct {
    Unit whole, slices[MAX_SLICES];
    Port ports[MAX_LINKS];
    char pci[32], cluster[40];
    int major, minor, numa, num_links;
    unsigned max_gen, max_width, card_gen, gen, width, power, mig, mig_pending, ecc, ecc_pending, persistence, compute;
    unsigned retired, rows[4], fabric_state, clique, health;
    u64 cpus[16], nodes, reasons;
} Card;

static struct {
    char driver[80];
    int cuda, num_gpus, num_fails;
    Card gpus[MAX_GPUS];
    unsigned level[MAX_GPUS][MAX_GPUS], p2p[MAX_GPUS][MAX_GPUS][4];
    struct { char function[80]; int gpu, code; } fails[MAX_FAILS];
} m;

static void set_gpu(Card *card, const char *key, const char *value) {
    struct { const char *key; unsigned *at; } numbers[] = {
        {"max_gen", &card->max_gen}, {"max_width", &card->max_width}, {"card_gen", &card->card_gen},
        {"gen", &card->gen}, {"width", &card->width}, {"power", &card->power}, {"mig", &card->mig},
        {"mig_pending", &card->mig_pending}, {"ecc", &card->ecc}, {"ecc_pending", &card->ecc_pending},
        {"persistence", &card->persistence}, {"compute", &card->compute}, {"retired", &card->retired},
    };
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++)
        if (!strcmp(key, numbers[at].key)) *numbers[at].at = (unsigned)strtoul(value, 0, 0);
    if (!strcmp(key, "uuid")) snprintf(card->whole.uuid, sizeof card->whole.uuid, "%s", value);
    if (!strcmp(key, "name")) snprintf(card->whole.name, sizeof card->whole.name, "%s", value);
    if (!strcmp(key, "pci")) snprintf(card->pci, sizeof card->pci, "%s", value);
    if (!strcmp(key, "mib")) card->whole.total = strtoull(value, 0, 0) << 20, card->whole.free = card->whole.total - (1 << 30);
    if (!strcmp(key, "capability")) sscanf(value, "%d.%d", &card->major, &card->minor);
    if (!strcmp(key, "numa")) card->numa = atoi(value);
    if (!strcmp(key, "links")) card->num_links = atoi(value);
    if (!strcmp(key, "cpus")) sscanf(value, "%llx %llx", &card->cpus[0], &card->cpus[1]);
    if (!strcmp(key, "nodes")) card->nodes = strtoull(value, 0, 0);
    if (!strcmp(key, "reasons")) card->reasons = strtoull(value, 0, 0);
    if (!strcmp(key, "rows")) sscanf(value, "%u %u %u %u", card->rows, card->rows + 1, card->rows + 2, card->rows + 3);
    if (!strcmp(key, "fabric")) sscanf(value, "%u %39s %u %u", &card->fabric_state, card->cluster, &card->clique, &card->health);
}

static void statement(char *line) {
    int a, b, at = 0, code;
    char word[80];
    unsigned v[6];
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "driver %n", &at), at) snprintf(m.driver, sizeof m.driver, "%s", line + at);
    else if (sscanf(line, "cuda %d", &a) == 1) m.cuda = a;
    else if (sscanf(line, "gpu %d %79s %n", &a, word, &at) == 2 && at && a < MAX_GPUS) {
        Card *card = &m.gpus[a];
        while (m.num_gpus <= a) {
            Card *fresh = &m.gpus[m.num_gpus];
            fresh->whole.gpu = m.num_gpus++, fresh->whole.slice = -1, fresh->num_links = -1, fresh->numa = -1;
        }
        set_gpu(card, word, line + at);
    } else if (sscanf(line, "link %d %d %u %u %u %31s", &a, &b, v, v + 1, v + 2, word) == 6) {
        Port *port = &m.gpus[a].ports[b];
        port->is_there = 1, port->state = v[0], port->version = v[1], port->type = v[2];
        snprintf(port->pci, sizeof port->pci, "%.31s", word);
    } else if (sscanf(line, "slice %d %d %79s %u %u %u %u %n", &a, &b, word, v, v + 1, v + 2, v + 3, &at) == 7) {
        Unit *unit = &m.gpus[a].slices[b];
        *unit = (Unit){.gpu = a, .slice = b, .total = (u64)v[0] << 20, .free = (u64)v[0] << 20};
        unit->gi = v[1], unit->ci = v[2], unit->sms = v[3];
        snprintf(unit->uuid, sizeof unit->uuid, "%s", word);
        snprintf(unit->name, sizeof unit->name, "%s", line + at);
    } else if (sscanf(line, "levels %u", v) == 1) {
        for (a = 0; a < MAX_GPUS; a++) for (b = 0; b < MAX_GPUS; b++) m.level[a][b] = v[0];
    } else if (sscanf(line, "level %d %d %u", &a, &b, v) == 3) m.level[a][b] = m.level[b][a] = v[0];
    else if (sscanf(line, "p2p %d %d %u %u %u %u", &a, &b, v, v + 1, v + 2, v + 3) == 6)
        for (at = 0; at < 4; at++) m.p2p[a][b][at] = m.p2p[b][a][at] = v[at];
    else if (sscanf(line, "fail %79s %d %d", word, &a, &code) == 3 && m.num_fails < MAX_FAILS) {
        snprintf(m.fails[m.num_fails].function, sizeof word, "%s", word);
        m.fails[m.num_fails].gpu = a, m.fails[m.num_fails++].code = code;
    }
}

static void read_machine(void) {
    char line[512];
    FILE *file = fopen(getenv("STAND_IN_MACHINE") ? getenv("STAND_IN_MACHINE") : "", "r");
    memset(&m, 0, sizeof m);
    snprintf(m.driver, sizeof m.driver, "570.00");
    m.cuda = 12080;
    strcpy(line, "levels 40");
    statement(line);
    while (file && fgets(line, sizeof line, file)) statement(line);
    if (file) fclose(file);
}

static int fails(const char *function, int gpu) {
    for (int at = 0; at < m.num_fails; at++) {
        int is_function = !strcmp(m.fails[at].function, function) || (gpu >= 0 && !strcmp(m.fails[at].function, "*"));
        if (is_function && (m.fails[at].gpu == -1 || m.fails[at].gpu == gpu)) return m.fails[at].code;
    }
    return OK;
}

#define ASK(gpu) do { int code = fails(__func__, gpu); if (code) return code; } while (0)
#define CARD(unit) (&m.gpus[(unit)->gpu])

int nvmlInitWithFlags(unsigned flags) { (void)flags; read_machine(); ASK(-1); return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { ASK(-1); snprintf(out, size, "%s", m.driver); return OK; }
int nvmlSystemGetCudaDriverVersion(int *out) { ASK(-1); *out = m.cuda; return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) { ASK(-1); *out = (unsigned)m.num_gpus; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Unit **out) {
    ASK((int)index);
    if ((int)index >= m.num_gpus) return BAD_ARGUMENT;
    *out = &m.gpus[index].whole;
    return OK;
}

int nvmlDeviceGetUUID(Unit *u, char *out, unsigned size) { ASK(u->gpu); snprintf(out, size, "%s", u->uuid); return OK; }
int nvmlDeviceGetName(Unit *u, char *out, unsigned size) { ASK(u->gpu); snprintf(out, size, "%s", u->name); return OK; }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; } Pci;

static int fill_pci(Pci *out, const char *text) {
    memset(out, 0, sizeof *out);
    if (sscanf(text, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return NOT_SUPPORTED;
    snprintf(out->text, sizeof out->text, "%08X:%02X:%02X.0", out->domain, out->bus & 255, out->device & 255);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(Unit *u, Pci *out) { ASK(u->gpu); return fill_pci(out, CARD(u)->pci); }

typedef struct { u64 total, free, used; } Memory;

int nvmlDeviceGetMemoryInfo(Unit *u, Memory *out) {
    ASK(u->gpu);
    *out = (Memory){u->total, u->free, u->total - u->free};
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(Unit *u, int *major, int *minor) {
    ASK(u->gpu);
    *major = CARD(u)->major, *minor = CARD(u)->minor;
    return OK;
}

int nvmlDeviceGetCpuAffinity(Unit *u, unsigned words, u64 *out) {
    ASK(u->gpu);
    for (unsigned at = 0; at < words; at++) out[at] = at < 16 ? CARD(u)->cpus[at] : 0;
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(Unit *a, Unit *b, unsigned *out) {
    ASK(a->gpu); ASK(b->gpu);
    *out = m.level[a->gpu][b->gpu];
    return OK;
}

int nvmlDeviceGetP2PStatus(Unit *a, Unit *b, unsigned what, unsigned *out) {
    ASK(a->gpu); ASK(b->gpu);
    if (what > 3) return BAD_ARGUMENT;
    *out = m.p2p[a->gpu][b->gpu][what];
    return OK;
}

#define NUMBER(function, field) int function(Unit *u, unsigned *out) { ASK(u->gpu); *out = CARD(u)->field; return OK; }
#define TWO(function, first, second) int function(Unit *u, unsigned *a, unsigned *b) \
    { ASK(u->gpu); *a = CARD(u)->first; *b = CARD(u)->second; return OK; }

NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, max_gen)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, max_width)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, gen)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, width)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, power)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, retired)
NUMBER(nvmlDeviceGetPersistenceMode, persistence)
NUMBER(nvmlDeviceGetComputeMode, compute)
TWO(nvmlDeviceGetEccMode, ecc, ecc_pending)
int nvmlDeviceGetCurrentClocksThrottleReasons(Unit *u, u64 *out) { ASK(u->gpu); *out = CARD(u)->reasons; return OK; }

#define PORT(u, link) ASK((u)->gpu); if ((link) >= MAX_LINKS || !CARD(u)->ports[link].is_there) return \
    CARD(u)->ports[0].is_there ? BAD_ARGUMENT : NOT_SUPPORTED; Port *port = &CARD(u)->ports[link]

int nvmlDeviceGetNvLinkState(Unit *u, unsigned link, unsigned *out) { PORT(u, link); *out = port->state; return OK; }
int nvmlDeviceGetNvLinkVersion(Unit *u, unsigned link, unsigned *out) { PORT(u, link); *out = port->version; return OK; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Unit *u, unsigned link, Pci *out) { PORT(u, link); return fill_pci(out, port->pci); }
int nvmlDeviceGetNvLinkCapability(Unit *u, unsigned link, unsigned what, unsigned *out) {
    PORT(u, link);
    *out = what == 0 && port->state;
    return OK;
}

#ifndef OLD
int nvmlSystemGetCudaDriverVersion_v2(int *out) { ASK(-1); *out = m.cuda; return OK; }
int nvmlDeviceGetNumaNodeId(Unit *u, unsigned *out) {
    ASK(u->gpu);
    if (CARD(u)->numa < 0) return NOT_SUPPORTED;
    *out = (unsigned)CARD(u)->numa;
    return OK;
}
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, card_gen)
int nvmlDeviceGetCurrentClocksEventReasons(Unit *u, u64 *out) { ASK(u->gpu); *out = CARD(u)->reasons; return OK; }
int nvmlDeviceGetNvLinkRemoteDeviceType(Unit *u, unsigned link, unsigned *out) { PORT(u, link); *out = port->type; return OK; }

int nvmlDeviceGetMemoryAffinity(Unit *u, unsigned words, u64 *out, unsigned scope) {
    (void)scope;
    ASK(u->gpu);
    memset(out, 0, words * sizeof *out);
    out[0] = CARD(u)->nodes;
    return OK;
}

int nvmlDeviceGetRemappedRows(Unit *u, unsigned *a, unsigned *b, unsigned *c, unsigned *d) {
    ASK(u->gpu);
    unsigned *rows = CARD(u)->rows;
    *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    return OK;
}

typedef struct {
    unsigned field, scope;
    long long time, latency;
    unsigned type;
    int code;
    union { unsigned number; u64 wide; } value;
} Field;

int nvmlDeviceGetFieldValues(Unit *u, int count, Field *values) {
    ASK(u->gpu);
    for (int at = 0; at < count; at++) {
        int is_known = values[at].field == 91 && CARD(u)->num_links >= 0; /* NVLINK_LINK_COUNT */
        values[at].code = is_known ? OK : NOT_SUPPORTED;
        values[at].type = 1;
        if (is_known) values[at].value.number = (unsigned)CARD(u)->num_links;
    }
    return OK;
}

int nvmlDeviceGetMigMode(Unit *u, unsigned *now, unsigned *next) {
    ASK(u->gpu);
    if (CARD(u)->major < 8) return NOT_SUPPORTED;
    *now = CARD(u)->mig, *next = CARD(u)->mig_pending;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(Unit *u, unsigned *out) { ASK(u->gpu); *out = MAX_SLICES; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(Unit *u, unsigned index, Unit **out) {
    ASK(u->gpu);
    if (index >= MAX_SLICES || !CARD(u)->slices[index].uuid[0]) return NOT_FOUND;
    *out = &CARD(u)->slices[index];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(Unit *u, unsigned *out) { ASK(u->gpu); *out = u->gi; return OK; }
int nvmlDeviceGetComputeInstanceId(Unit *u, unsigned *out) { ASK(u->gpu); *out = u->ci; return OK; }

typedef struct { unsigned sms, rest[7]; u64 mib; } Attributes;
int nvmlDeviceGetAttributes_v2(Unit *u, Attributes *out) {
    ASK(u->gpu);
    memset(out, 0, sizeof *out);
    out->sms = u->sms, out->mib = u->total >> 20;
    return OK;
}

static void fill_cluster(Unit *u, unsigned char *out) {
    for (int at = 0; at < 16; at++) {
        unsigned byte = 0;
        if (strlen(CARD(u)->cluster) >= 32) sscanf(CARD(u)->cluster + 2 * at, "%2x", &byte);
        out[at] = (unsigned char)byte;
    }
}

typedef struct { unsigned char cluster[16]; int status; unsigned clique, state; } FabricOne;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique, state, health; } FabricTwo;

int nvmlDeviceGetGpuFabricInfo(Unit *u, FabricOne *out) {
    ASK(u->gpu);
    fill_cluster(u, out->cluster);
    out->status = OK, out->clique = CARD(u)->clique, out->state = CARD(u)->fabric_state;
    return OK;
}
int nvmlDeviceGetGpuFabricInfoV(Unit *u, FabricTwo *out) {
    ASK(u->gpu);
    if (out->version != (sizeof *out | 2 << 24)) return VERSION_MISMATCH;
    fill_cluster(u, out->cluster);
    out->status = OK, out->clique = CARD(u)->clique, out->state = CARD(u)->fabric_state, out->health = CARD(u)->health;
    return OK;
}
#endif

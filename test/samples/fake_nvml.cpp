// A libnvidia-ml.so.1 with two GPUs, one of which knows little.
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static int devices[2];
  *device = &devices[index];
  devices[index] = static_cast<int>(index);
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned) {
  const char text[] = "Tesla V100-SXM2-32GB";
  for (unsigned i = 0; i < sizeof text; ++i) name[i] = text[i];
  return 0;
}
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
int nvmlDeviceGetMemoryInfo_v2(void*, MemoryV2* memory) {
  if (memory->version != (sizeof(MemoryV2) | 2u << 24)) return 25;
  memory->total = 32768ULL << 20;
  memory->reserved = 500ULL << 20;
  memory->used = (1ULL << 20) + 5;
  return 0;
}
struct Pci {
  char older_text[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
};
int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  if (*static_cast<int*>(device) == 1) return 3;
  pci->domain = 0;
  pci->bus = 0xd7;
  pci->device = 0;
  return 0;
}
struct Utilization {
  unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(void* device, Utilization* busy) {
  if (*static_cast<int*>(device) == 1) return 3;  // not supported
  busy->gpu = 97;
  busy->memory = 41;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int, unsigned* degrees) {
  *degrees = 61;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  if (*static_cast<int*>(device) == 1) return 3;
  *milliwatts = 251340;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int clock, unsigned* mhz) {
  *mhz = clock == 1 ? 1530 : 1;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 4;
  return 0;
}
}

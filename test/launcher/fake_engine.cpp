// Stands for the engine library beside fake_dstrain: it loads, and says of which build it is.
extern "C" const char* dstrain_engine_build() { return "fake"; }

# cmake -DLIBRARY=libpawl_checkpoint.so -DNM=... -DHEADER=checkpoint.h -P checkpoint_symbols_test.cmake
# The library shows what checkpoint.h declares, all of it, and nothing else.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " T (pawl_[a-z_]+)" defined "${symbols}")
string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
list(LENGTH lines shown_count)
file(READ ${HEADER} header)
string(REGEX MATCHALL "\nPAWL_API [^;]*" declarations "${header}")
list(LENGTH declarations declared_count)
list(LENGTH defined defined_count)
if(NOT declared_count EQUAL defined_count OR NOT shown_count EQUAL defined_count OR defined_count LESS 8)
  message(FATAL_ERROR "checkpoint.h declares ${declared_count} calls, the library shows ${shown_count} symbols:\n${symbols}")
endif()

/* A C interface that is not the library's, nor what its list says. */
typedef struct tilewise_options {
  int second;
  int first;
} tilewise_options;
TILEWISE_EXPORT const char* tilewise_version(int changed);
TILEWISE_EXPORT void tilewise_absent(void);

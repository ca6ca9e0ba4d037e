/* pawl's version: the only place where it is written. CMakeLists.txt and python/wheel_backend.py read these lines. */
#ifndef PAWL_VERSION_H
#define PAWL_VERSION_H

#define PAWL_VERSION_MAJOR 0
#define PAWL_VERSION_MINOR 1
#define PAWL_VERSION_PATCH 0

#endif

# pip builds in an environment of its own whose path is another one each time, and with it every compile command that
# names a header in it. From a copy in the build folder, which is written only where a file differs, a second
# `pip install` compiles nothing anew.
function(seeddelta_stable_headers from to)
  file(GLOB_RECURSE _names RELATIVE "${from}" "${from}/*")
  foreach(_name IN LISTS _names)
    configure_file("${from}/${_name}" "${to}/${_name}" COPYONLY)
  endforeach()
endfunction()

"""The documentation's settings: Sphinx with MyST, whose notebooks run when it is built."""

import autopar

project = "autopar"
author = "the autopar maintainers"
release = version = autopar.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "autopar"
html_static_path = ["_static"]
html_css_files = ["site.css"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4
nb_execution_mode = "auto"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 240
nb_merge_streams = True

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
# The stub names the public classes; the modules that define them are no part of their names.
add_module_names = False

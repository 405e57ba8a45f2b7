"""The lines of an evaluation as figures, tables and pictures. How a page is written from them is decided in `report`."""

//! A plot of one metric: a bar for the median of each picker, a point for each round.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::text::number;

/// A picker in a plot.
#[derive(Debug, Clone)]
pub struct Bar {
    /// The picker.
    pub name: String,
    /// Length of the bar.
    pub median: f64,
    /// The rounds.
    pub points: Vec<f64>,
}

/// In pixels.
const WIDTH: u32 = 720;
const HEAD: u32 = 84;
const ROW: u32 = 52;

/// Room for the names.
const NAMES: u32 = 120;

const FONT: &str = "sans-serif";

/// Readable on white and on black, as the page behind may be either.
const INK: RGBColor = RGBColor(128, 128, 128);
const LIMIT: RGBColor = RGBColor(148, 148, 160);
const PICKER: RGBColor = RGBColor(47, 129, 247);
const POINT: RGBColor = RGBColor(219, 109, 40);

/// Draws it as an SVG. The first bar is what the others are compared with. Values below 0
/// are drawn as 0.
///
/// # Errors
/// The drawing library's message if it fails.
pub fn svg(title: &str, unit: &str, bars: &[Bar]) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text, title, unit, bars).map_err(|error| format!("cannot draw {title:?}: {error}"))?;
    Ok(text)
}

fn draw(text: &mut String, title: &str, unit: &str, bars: &[Bar]) -> Result<(), Box<dyn std::error::Error>> {
    let rows = bars.len() as u32;
    let area = SVGBackend::with_string(text, (WIDTH, HEAD + ROW * rows)).into_drawing_area();
    let highest = bars.iter().flat_map(|bar| bar.points.iter().copied().chain([bar.median]));
    let highest = highest.fold(0.0, f64::max);
    // Room for the value behind the longest bar. Nothing to show is shown on some scale.
    let end = if highest > 0.0 { highest * 1.2 } else { 1.0 };
    let ink = |size: i32| (FONT, size).into_font().color(&INK);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ink(20))
        .margin_right(12)
        .x_label_area_size(40)
        .y_label_area_size(NAMES)
        .build_cartesian_2d(0.0..end, f64::from(rows)..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_labels(6)
        .x_label_formatter(&|value| number(*value))
        .x_desc(unit)
        .label_style(ink(15))
        .axis_desc_style(ink(15))
        .axis_style(INK)
        .bold_line_style(INK.mix(0.35))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (row, bar) in bars.iter().enumerate() {
        let middle = row as f64 + 0.5;
        let colour = if row == 0 { LIMIT } else { PICKER };
        let corners = [(0.0, middle - 0.3), (bar.median.max(0.0), middle + 0.3)];
        chart.draw_series([Rectangle::new(corners, colour.mix(0.75).filled())])?;
        let points = bar.points.iter().map(|value| (value.max(0.0), middle));
        chart.draw_series(points.map(|at| Circle::new(at, 4, POINT.filled())))?;
        let furthest = bar.points.iter().copied().fold(bar.median, f64::max).max(0.0);
        let behind = (furthest, middle);
        let (name_end, value_start) =
            (Pos::new(HPos::Right, VPos::Center), Pos::new(HPos::Left, VPos::Center));
        let label = |text: String, at, offset, pos| {
            EmptyElement::at(at) + Text::new(text, (offset, 0), ink(17).pos(pos))
        };
        chart.plotting_area().draw(&label(number(bar.median), behind, 9, value_start))?;
        let at = chart.plotting_area().map_coordinate(&(0.0, middle));
        area.draw(&Text::new(bar.name.clone(), (at.0 - 8, at.1), ink(17).pos(name_end)))?;
    }
    area.present()?;
    Ok(())
}
